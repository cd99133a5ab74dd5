// Which of the algorithms that cuBLASLt recommends is the fastest here, by trying them before the server is
// ready. Its first recommendation is 1 to 8 % behind over a layer's products (README.md), most where the card
// runs into its power limit, which cuBLASLt's estimates do not know of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/dtype.h"

namespace sluice::cuda {

// Products by weights [n, k], for these numbers of rows (ascending). Several weights, so that none is read from
// the L2.
struct TuneShape {
  int64_t n = 0, k = 0;
  DType out = DType::bf16;  // i32 of int8 factors
  std::vector<int64_t> rows;
  std::vector<const void*> weights;
  Factors factors = Factors::bf16;
  std::vector<const float*> scales = {};  // of the weights, where the product is to scale
};

struct Tuned {
  int products = 0;                  // timed
  double first_ms = 0, best_ms = 0;  // sums over them of the first recommendation and of what was kept
};

// Times them on context.stream, idle otherwise, and has `cublas` keep the best. Takes memory for activations
// while it lasts; where there is none for the most rows, they keep cuBLASLt's recommendation.
Tuned tune(const Context& context, CublasLt& cublas, std::span<const TuneShape> shapes);

}  // namespace sluice::cuda
