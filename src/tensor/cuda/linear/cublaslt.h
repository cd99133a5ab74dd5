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
#include "tensor/tensor.h"

namespace sluice {
class Backend;
struct LinearArgs;
}  // namespace sluice

namespace sluice::cuda {

// Owned and called by the executor thread.
class CublasLt {
 public:
  // Takes its workspace from backend.alloc. Errors: the library's (open_cublaslt), or no memory.
  static Result<std::unique_ptr<CublasLt>> make(const Context& context, Backend& backend);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues the product, with the algorithm that cuBLAS recommends for the shape. Recommendations are asked
  // for on the host when a shape (its rows rounded up) is first met, and kept.
  void run(const LinearArgs& a);

  // What `run` chooses from, best first as cuBLAS estimates, and a run with one of them (linear_bench).
  std::vector<cublasLtMatmulAlgo_t> candidates(const LinearArgs& a, int most);
  void run_with(const LinearArgs& a, const cublasLtMatmulAlgo_t& algorithm);

 private:
  CublasLt(const Context& context, const CublasLtLibrary& library) : context_(context), lt_(library) {}
  void check(cublasStatus_t status, const char* call) const;
  void describe(const LinearArgs& a, int64_t rows);
  std::vector<cublasLtMatmulHeuristicResult_t> ask(const LinearArgs& a, int64_t rows, int most);

  // Rows rounded up, N, K, strides of x and out, type of out, bias given, alignment of the pointers.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, DType, bool, uint32_t>;

  const Context& context_;
  const CublasLtLibrary& lt_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;  // set anew by every call, as the layouts are
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
  Buffer workspace_;
  Buffer bias_;  // bf16 copy of the bias of the product that is being enqueued
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
};

// Rows are rounded up to this before cuBLAS is asked, so that prompts of any length meet few new shapes.
int64_t rounded_rows(int64_t rows);

}  // namespace sluice::cuda
