// Products with 4-bit weights: which of three ways (int4_choice.h), and what they need. Streaming for few rows,
// tensor cores fed from registers for more, and where neither fits (zeros that are no integers, very many rows)
// the weights as bf16 by cuBLASLt: a copy made at load, where memory is to spare, or some rows at a time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/linear/int4_layout.h"

namespace sluice::cuda {

// Owned and called by the executor thread, as CublasLt is.
class Int4Linear {
 public:
  Int4Linear(const Context& context, CublasLt& cublas) : context_(context), cublas_(cublas) {}

  // Once per 4-bit part of a weight of so many columns, at load.
  void prepare(const Weight::Part& part, int64_t cols, Backend& backend);
  // Once, after the last weight and before reserve(): keeps all weights as bf16 too, for products of many rows,
  // where their bytes fit into `spare`. Says which copies there are.
  struct Copy {
    int64_t rows = 0, cols = 0;
    const void* data = nullptr;  // row-major bf16 on the card
  };
  std::vector<Copy> copy(Backend& backend, size_t spare);
  // Once, after the last weight: learns which zeros are integers (until then none count as such), and takes
  // memory for weights as bf16 where there are any. Error: no memory.
  Status reserve(Backend& backend);
  // Enqueues a product by a part that was prepared. Of a.w only the shape is read, the part's.
  void run(const LinearArgs& a, const Weight::Part& part);

 private:
  void by_cublaslt(const LinearArgs& a, const void* data, const Int4Layout& layout);

  struct Known {
    int64_t index = 0;  // in odd_zeros_
    Int4Layout layout;
    bool integer_zeros = false;
    Buffer copy;  // as bf16; empty: there is none
  };
  const Context& context_;
  CublasLt& cublas_;
  std::unordered_map<const void*, Known> weights_;
  std::vector<Buffer> odd_zeros_;  // on the card, kFlags each
  int64_t most_bytes_ = 0;         // of a part as bf16
  Buffer expanded_;
};

}  // namespace sluice::cuda
