#include "tensor/cuda/linear/linear.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/linear/eight_bit.h"
#include "tensor/cuda/linear/heuristics.h"
#include "tensor/cuda/linear/int4_choice.h"
#include "tensor/cuda/linear/int4_linear.h"
#include "tensor/cuda/linear/stream_gemm.h"
#include "tensor/cuda/linear/stream_gemm_8bit.h"
#include "tensor/cuda/linear/tune.h"

namespace sluice::cuda {
namespace {

class CudaLinear final : public Linear {
 public:
  CudaLinear(const Context& context, Backend& backend, std::unique_ptr<CublasLt> cublas,
             Buffer stream_workspace)
      : context_(context),
        backend_(backend),
        cublas_(std::move(cublas)),
        stream_workspace_(std::move(stream_workspace)),
        eight_bit_(context, *cublas_, stream_workspace_.data()),
        int4_(context, *cublas_) {}

  void prepare(const Weight& w) override {
    check(w);
    for (const Weight::Part& part : w.parts) {
      const void* data = part.data.data();
      CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
      if (part.format.element == WeightElement::int4) {
        int4_.prepare(part, w.cols, backend_);
        continue;
      }
      const Factors factors = factors_of(part.format);
      Group& group = weights_[{part.rows, w.cols, factors}];
      group.weights.push_back(data);
      if (factors != Factors::bf16) group.scales.push_back(quantized_weight(w).scales);
    }
    if (w.parts.size() == 1) eight_bit_.prepare(w);
  }

  void copy(size_t spare) override {
    for (const Int4Linear::Copy& c : int4_.copy(backend_, spare)) {
      Group& group = weights_[{c.rows, c.cols, Factors::bf16}];
      if (group.weights.empty()) group.least_rows = kMostRowsBesideCopy + 1;
      group.weights.push_back(c.data);
    }
  }
  void tune(const WorkspaceShape& step) override;
  Status reserve(const WorkspaceShape& step) override {
    if (Status reserved = int4_.reserve(backend_); !reserved) return reserved;
    return eight_bit_.reserve(backend_, std::max(step.max_tokens, step.max_logit_rows));
  }

  const QuantizedRows* copy_wanted(const Tensor& out) override { return eight_bit_.copy_wanted(out); }
  bool only_copy_wanted(const Tensor& out) const override { return eight_bit_.only_eight_bits(out.cols); }
  void written(const Tensor& out) override { eight_bit_.written(out); }

  void run(const LinearArgs& a) override {
    if (a.x.rows == 0) return;
    check(a.w);
    CHECK(a.x.dtype == DType::bf16 && (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32));
    CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.out.rows == a.x.rows);
    CHECK(a.x.stride >= a.x.cols && a.out.stride >= a.out.cols);
    if (factors_of(a.w.parts[0].format) != Factors::bf16) return eight_bit_.run(a);
    eight_bit_.written(a.out);
    if (a.w.parts.size() == 1) return run_part(a, a.w.parts[0]);
    for (const Weight::Part& part : a.w.parts) {
      Weight shape;
      shape.rows = part.rows, shape.cols = a.w.cols;
      run_part(
          {a.x, shape, a.bias ? a.bias + part.row_begin : nullptr, a.out.columns(part.row_begin, part.rows)},
          part);
    }
  }

 private:
  // Of a.w only the shape is read, the part's.
  void run_part(const LinearArgs& a, const Weight::Part& part) {
    if (part.format.element == WeightElement::int4) return int4_.run(a, part);
    const void* weights = part.data.data();
    const LinearChoice choice =
        choose_linear({a.x.rows, a.w.rows, a.w.cols, a.out.dtype}, context_.multiprocessors);
    if (choice.way == LinearChoice::Way::cublaslt || !stream_gemm_supports(choice.stream) ||
        !stream_gemm_supports(a))
      return cublas_->run({a.x, weights, a.bias, a.out});
    stream_gemm(context_, a, weights, choice.stream, stream_workspace_.data());
  }

  static void check(const Weight& w) {
    for (const Weight::Part& part : w.parts) {
      const WeightElement element = part.format.element;
      const bool eight =
          (element == WeightElement::fp8 || element == WeightElement::int8) && w.parts.size() == 1;
      CHECK((element == WeightElement::bf16 && w.cols % 8 == 0) || element == WeightElement::int4 ||
                (eight && w.cols % 16 == 0 && w.rows % 16 == 0),
            "a weight that load/ did not make");
    }
  }

  struct Group {
    std::vector<const void*> weights;
    std::vector<const float*> scales;
    int64_t least_rows = 1;  // fewer are never asked for
  };

  const Context& context_;
  Backend& backend_;
  std::unique_ptr<CublasLt> cublas_;
  Buffer stream_workspace_;
  EightBitLinear eight_bit_;
  Int4Linear int4_;
  std::map<std::tuple<int64_t, int64_t, Factors>, Group> weights_;  // prepared, by N, K and kind
};

// Above this many rows only every kSparseRows-th number is tried; those between get what cuBLASLt recommends.
// To try all of up to 8192 would take four seconds.
constexpr int64_t kDenseRows = 2304, kSparseRows = 1024;

// The head's products are of logit rows, and float32.
void CudaLinear::tune(const WorkspaceShape& step) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<TuneShape> shapes;
  for (const auto& [size, group] : weights_) {
    const auto [n, k, factors] = size;
    const bool head = n == step.vocab;
    const DType out = factors == Factors::int8 ? DType::i32 : head ? DType::f32 : DType::bf16;
    using Way = LinearChoice::Way;
    TuneShape scaled{n, k, out, {}, group.weights, factors, group.scales},
        unscaled{n, k, DType::f32, {}, group.weights, factors, {}};
    const int64_t most = rounded_rows(std::max(1, head ? step.max_logit_rows : step.max_tokens));
    for (int64_t rows = group.least_rows; (rows = rounded_rows(rows)) <= most; ++rows) {
      if (rows > kDenseRows && rows % kSparseRows != 0) continue;
      if (factors == Factors::fp8_blocks && rows % kRowsLeftToBackend != 0) continue;
      const Way way = choose_linear({rows, n, k, out, factors}, context_.multiprocessors).way;
      if (way != Way::stream) (way == Way::cublaslt ? scaled : unscaled).rows.push_back(rows);
    }
    for (TuneShape* shape : {&scaled, &unscaled})
      if (!shape->rows.empty()) shapes.push_back(std::move(*shape));
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
  stream_gemm_8bit_prepare();
  Buffer workspace = backend.alloc(stream_gemm_workspace_bytes(context.multiprocessors));
  if (!workspace.data())
    return Error{ErrorCode::kResourceExhausted, "no memory left on the card for the linears' workspace"};
  return std::unique_ptr<Linear>(
      std::make_unique<CudaLinear>(context, backend, std::move(*cublas), std::move(workspace)));
}

}  // namespace sluice::cuda
