#include "tensor/cuda/linear/linear.h"

#include <chrono>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/linear/heuristics.h"
#include "tensor/cuda/linear/stream_gemm.h"
#include "tensor/cuda/linear/tune.h"

namespace sluice::cuda {
namespace {

class CudaLinear final : public Linear {
 public:
  CudaLinear(const Context& context, std::unique_ptr<CublasLt> cublas, Buffer stream_workspace)
      : context_(context), cublas_(std::move(cublas)), stream_workspace_(std::move(stream_workspace)) {}

  void prepare(const Weight& w) override {
    check(w);
    const void* data = w.parts[0].data.data();
    CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
    weights_[{w.rows, w.cols}].push_back(data);
  }

  void tune(const WorkspaceShape& step) override;

  void run(const LinearArgs& a) override {
    if (a.x.rows == 0) return;
    check(a.w);
    CHECK(a.x.dtype == DType::bf16 && (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32));
    CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.out.rows == a.x.rows);
    CHECK(a.x.stride >= a.x.cols && a.out.stride >= a.out.cols);
    const LinearChoice choice =
        choose_linear({a.x.rows, a.w.rows, a.w.cols, a.out.dtype}, context_.multiprocessors);
    if (choice.way == LinearChoice::Way::cublaslt || !stream_gemm_supports(choice.stream) ||
        !stream_gemm_supports(a))
      return cublas_->run({a.x, a.w.parts[0].data.data(), a.bias, a.out});
    stream_gemm(context_, a, a.w.parts[0].data.data(), choice.stream, stream_workspace_.data());
  }

 private:
  static void check(const Weight& w) {
    CHECK(w.parts.size() == 1 && w.parts[0].format.element == WeightElement::bf16 && w.cols % 8 == 0,
          "a weight that load/ did not make");
  }

  const Context& context_;
  std::unique_ptr<CublasLt> cublas_;
  Buffer stream_workspace_;
  std::map<std::pair<int64_t, int64_t>, std::vector<const void*>> weights_;  // prepared, by N and K
};

// Above this many rows only every kSparseRows-th number is tried; those between get what cuBLASLt recommends.
// To try all of up to 8192 would take four seconds.
constexpr int64_t kDenseRows = 2304, kSparseRows = 1024;

// The head's products are of logit rows, and float32.
void CudaLinear::tune(const WorkspaceShape& step) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<TuneShape> shapes;
  for (const auto& [size, weights] : weights_) {
    const auto [n, k] = size;
    const bool head = n == step.vocab;
    TuneShape shape{n, k, head ? DType::f32 : DType::bf16, {}, weights};
    const int64_t most = rounded_rows(std::max(1, head ? step.max_logit_rows : step.max_tokens));
    for (int64_t rows = 1; (rows = rounded_rows(rows)) <= most; ++rows)
      if ((rows <= kDenseRows || rows % kSparseRows == 0) &&
          choose_linear({rows, n, k, shape.out}, context_.multiprocessors).way == LinearChoice::Way::cublaslt)
        shape.rows.push_back(rows);
    if (!shape.rows.empty()) shapes.push_back(std::move(shape));
  }
  const Tuned tuned = cuda::tune(context_, *cublas_, shapes);
  if (tuned.products == 0) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  LOG(info, "linears: tried cuBLASLt's algorithms for {} products in {:.2f} s; {:.1f} % gained", tuned.products,
      took.count(), (tuned.first_ms / tuned.best_ms - 1) * 100);
}

}  // namespace

Result<std::unique_ptr<Linear>> make_linear(const Context& context, Backend& backend) {
  auto cublas = CublasLt::make(context, backend);
  if (!cublas) return std::move(cublas).error();
  stream_gemm_prepare();
  Buffer workspace = backend.alloc(stream_gemm_workspace_bytes(context.multiprocessors));
  if (!workspace.data())
    return Error{ErrorCode::kResourceExhausted, "no memory left on the card for the linears' workspace"};
  return std::unique_ptr<Linear>(
      std::make_unique<CudaLinear>(context, std::move(*cublas), std::move(workspace)));
}

}  // namespace sluice::cuda
