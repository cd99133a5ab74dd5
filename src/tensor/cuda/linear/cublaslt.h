// Products by cuBLASLt, for more rows than the streaming kernel is good at. x · wᵀ of row-major matrices is
// cuBLAS's (column-major) wᵀ' · x: its A is w [K, N] transposed, its B is x [K, M], its D is out [N, M].
//
// Beside kernels with programmatic dependent launch (device/launch.h): a cuBLAS kernel is launched without that
// attribute, or waits as its own rules say, so it starts when the kernel before it has ended, and that one
// ended after waiting for all before it. A kernel of ours behind it starts when every block of it has triggered
// or ended (one that never triggers counts as triggering at its end), and waits for its end before it reads
// anything. So both orders hold, in streams as in graphs. The workspace is written by cuBLAS alone, whose
// kernels run one after the other.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/cublaslt_library.h"
#include "tensor/cuda/linear/heuristics.h"
#include "tensor/tensor.h"

namespace sluice {
class Backend;
}  // namespace sluice

namespace sluice::cuda {

// out[M, N] = x[M, K] · w[N, K]ᵀ (+ bias[N]). Eight-bit factors: no bias, N and K multiples of 16. fp8's scales
// (quantized_rows.h) are part of the product where they are given; int8's are not, its sums come out.
struct Product {
  Tensor x;                     // [M, K], bf16; i8 for eight-bit factors of any kind
  const void* w = nullptr;      // [N, K], as x, dense
  const float* bias = nullptr;  // [N] or null
  Tensor out;                   // [M, N], bf16 or f32; i32 of int8
  Factors factors = Factors::bf16;
  const float* w_scales =
      nullptr;  // of fp8 [N] or null; of blocks [N / 128, K / 128 rounded up to a multiple of 4]
  const float* x_scales = nullptr;  // of fp8 [M]; of blocks [K / 128, M]
};

// Owned and called by the executor thread.
class CublasLt {
 public:
  // Takes its workspace from backend.alloc. Errors: the library's (open_cublaslt), or no memory.
  static Result<std::unique_ptr<CublasLt>> make(const Context& context, Backend& backend);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues the product, with the algorithm kept for its shape, or else the one that cuBLASLt recommends.
  // Recommendations are asked for on the host (0.3 ms) when a shape, its rows rounded up, is first met, and
  // kept.
  void run(const Product& p);

  // What cuBLASLt recommends, best first as it estimates; a run with one of them; and which of them `run` is to
  // take from now on for this shape, with and without a bias (tune.h).
  std::vector<cublasLtMatmulAlgo_t> candidates(const Product& p, int most);
  void run_with(const Product& p, const cublasLtMatmulAlgo_t& algorithm);
  void keep(const Product& p, const cublasLtMatmulAlgo_t& algorithm);

 private:
  CublasLt(const Context& context, const CublasLtLibrary& library) : context_(context), lt_(library) {}
  void check(cublasStatus_t status, const char* call) const;
  void describe(const Product& p, int64_t rows);
  cublasStatus_t enqueue(const Product& p, const cublasLtMatmulAlgo_t& algorithm);
  std::vector<cublasLtMatmulHeuristicResult_t> ask(const Product& p, int64_t rows, int most);

  // Rows rounded up, N, K, strides of x and out, type of out, bias given, alignment of the pointers, factors
  // and whether they are scaled.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, DType, bool, uint32_t, Factors, bool>;
  static Key key_of(const Product& p, int64_t rows, bool bias);

  const Context& context_;
  const CublasLtLibrary& lt_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc(const Product& p) const { return p.factors == Factors::int8 ? integer_ : float_; }
  cublasLtMatmulDesc_t float_ = nullptr, integer_ = nullptr;  // set anew by every call, as the layouts are
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
  Buffer workspace_;
  Buffer bias_;  // bf16 copy of the bias of the product that is being enqueued
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
  std::map<Key, cublasLtMatmulAlgo_t> own_;  // by rows as they are, where the rounded ones' does not work
};

// Rows are rounded up to this before cuBLASLt is asked, so that prompts of any length meet few new shapes. Not
// beyond the next full tile: what is best for 2560 rows took 2176 rows 12 % longer than what is best for them.
int64_t rounded_rows(int64_t rows);

}  // namespace sluice::cuda
