#include "tensor/cuda/linear/linear.h"

#include "base/check.h"
#include "tensor/cuda/linear/cublaslt.h"

namespace sluice::cuda {
namespace {

class CudaLinear final : public Linear {
 public:
  explicit CudaLinear(std::unique_ptr<CublasLt> cublas) : cublas_(std::move(cublas)) {}

  void prepare(const Weight& w) override {
    CHECK(w.parts.size() == 1 && w.parts[0].format.element == WeightElement::bf16, "a weight not of load/");
    CHECK(w.cols % 8 == 0 && reinterpret_cast<uintptr_t>(w.parts[0].data.data()) % 256 == 0);
  }

  void run(const LinearArgs& a) override {
    if (a.x.rows == 0) return;
    CHECK(a.w.parts.size() == 1 && a.w.parts[0].format.element == WeightElement::bf16);
    CHECK(a.x.dtype == DType::bf16 && (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32));
    CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.out.rows == a.x.rows);
    CHECK(a.x.stride >= a.x.cols && a.out.stride >= a.out.cols);
    cublas_->run(a);
  }

 private:
  std::unique_ptr<CublasLt> cublas_;
};

}  // namespace

Result<std::unique_ptr<Linear>> make_linear(const Context& context, Backend& backend) {
  auto cublas = CublasLt::make(context, backend);
  if (!cublas) return std::move(cublas).error();
  return std::unique_ptr<Linear>(std::make_unique<CudaLinear>(std::move(*cublas)));
}

}  // namespace sluice::cuda
