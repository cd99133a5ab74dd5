#include "tensor/cuda/linear/cublaslt.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "tensor/backend.h"
#include "tensor/cuda/linear/bias.h"

namespace sluice::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper
// cuBLASLt 13.1 takes no float32 bias beside a bf16 result.
constexpr int64_t kMaxBias = int64_t{1} << 18;

// Largest power of two that divides the address, at most 16: no kernel asks for more.
uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return address == 0 ? 16 : uint32_t(std::min<uintptr_t>(address & -address, 16));
}

cudaDataType_t type_of(DType t) {
  return t == DType::f32 ? CUDA_R_32F : t == DType::i32 ? CUDA_R_32I : CUDA_R_16BF;
}
cudaDataType_t type_of(Factors f) {
  return f == Factors::bf16 ? CUDA_R_16BF : f == Factors::int8 ? CUDA_R_8I : CUDA_R_8F_E4M3;
}

[[noreturn]] void refused(const Product& p, const char* why) {
  char text[256];
  std::snprintf(text, sizeof text, "%lld rows, %lld to %lld, out %s, strides %lld and %lld%s: %s",
                static_cast<long long>(p.x.rows), static_cast<long long>(p.x.cols),
                static_cast<long long>(p.out.cols), dtype_name(p.out.dtype), static_cast<long long>(p.x.stride),
                static_cast<long long>(p.out.stride), p.bias ? ", bias" : "", why);
  check_failed("cuBLASLt takes the shape", __FILE__, __LINE__, text);
}

}  // namespace

int64_t rounded_rows(int64_t rows) {
  const int64_t step = rows <= 128 ? 8 : rows <= 512 ? 32 : rows <= 1024 ? 64 : rows <= 4096 ? 128 : 256;
  return (rows + step - 1) / step * step;
}

void CublasLt::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  char text[256];
  std::snprintf(text, sizeof text, "%s: %s", call, lt_.status_string(status));
  check_failed("cuBLASLt", __FILE__, __LINE__, text);
}

Result<std::unique_ptr<CublasLt>> CublasLt::make(const Context& context, Backend& backend) {
  auto library = open_cublaslt();
  if (!library) return std::move(library).error();
  std::unique_ptr<CublasLt> made(new CublasLt(context, **library));
  if (const cublasStatus_t s = made->lt_.create(&made->handle_); s != CUBLAS_STATUS_SUCCESS)
    return Error{ErrorCode::kUnsupported, std::string("cuBLASLt does not start: ") + made->lt_.status_string(s),
                 "device"};
  made->workspace_ = backend.alloc(kWorkspaceBytes);
  made->bias_ = backend.alloc(size_t(kMaxBias) * sizeof(uint16_t));
  if (!made->workspace_.data() || !made->bias_.data())
    return Error{ErrorCode::kResourceExhausted, "no memory left on the card for cuBLASLt's workspace (32 MiB)"};
  made->check(made->lt_.desc_create(&made->float_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
  made->check(made->lt_.desc_create(&made->integer_, CUBLAS_COMPUTE_32I, CUDA_R_32I), "MatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  for (cublasLtMatmulDesc_t desc : {made->float_, made->integer_})
    made->check(made->lt_.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
                "TRANSA");
  for (cublasLtMatrixLayout_t* layout : {&made->w_, &made->x_, &made->out_})
    made->check(made->lt_.layout_create(layout, CUDA_R_16BF, 8, 8, 8), "MatrixLayoutCreate");
  return made;
}

CublasLt::~CublasLt() {
  for (cublasLtMatrixLayout_t layout : {w_, x_, out_})
    if (layout) lt_.layout_destroy(layout);
  for (cublasLtMatmulDesc_t desc : {float_, integer_})
    if (desc) lt_.desc_destroy(desc);
  if (handle_) lt_.destroy(handle_);
}

// Sets descriptor and layouts for `a` with this many rows.
void CublasLt::describe(const Product& p, int64_t rows) {
  const auto layout = [&](cublasLtMatrixLayout_t l, cudaDataType_t t, int64_t inner, int64_t outer,
                          int64_t stride) {
    const auto type = uint32_t(t);
    const uint64_t height = uint64_t(inner), width = uint64_t(outer);
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type), "TYPE");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &height, sizeof height), "ROWS");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_COLS, &width, sizeof width), "COLS");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride), "LD");
  };
  layout(w_, type_of(p.factors), p.x.cols, p.out.cols, p.x.cols);
  layout(x_, type_of(p.factors), p.x.cols, rows, p.x.stride);
  layout(out_, type_of(p.out.dtype), p.out.cols, rows, p.out.stride);
  if (p.factors == Factors::int8) return;

  const auto set = [&](cublasLtMatmulDescAttributes_t what, auto value, const char* name) {
    check(lt_.desc_set(float_, what, &value, sizeof value), name);
  };
  // cuBLAS's A is w. Fast sums keep 14 bits, as the streaming kernel's within a stage.
  const bool blocks = p.factors == Factors::fp8_blocks,
             fp8 = blocks || (p.factors == Factors::fp8 && p.w_scales);
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(p.factors == Factors::fp8), "FAST_ACCUM");
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
      int32_t(blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
              : fp8  ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                     : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
      "A_SCALE_MODE");
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
      int32_t(blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
              : fp8  ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                     : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
      "B_SCALE_MODE");
  // Left from the product before, they would be judged with bf16 too.
  const float* none = nullptr;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, fp8 ? p.w_scales : none, "A_SCALE_POINTER");
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, fp8 ? p.x_scales : none, "B_SCALE_POINTER");

  const cublasLtEpilogue_t epilogue = p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue, "EPILOGUE");
  // A type left from the product before would be judged even without a bias: -1 is "none given".
  const void* bias = !p.bias                     ? nullptr
                     : p.out.dtype == DType::f32 ? static_cast<const void*>(p.bias)
                                                 : bias_.data();
  const int32_t type = p.bias ? int32_t(type_of(p.out.dtype)) : -1;
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, "BIAS_POINTER");
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type, "BIAS_DATA_TYPE");
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasLt::ask(const Product& p, int64_t rows, int most) {
  describe(p, rows);
  cublasLtMatmulPreference_t wish = nullptr;
  check(lt_.preference_create(&wish), "PreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    check(lt_.preference_set(wish, what, &value, sizeof value), "PreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_.bytes()));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(alignment(p.w)));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(alignment(p.x.data)));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(alignment(p.out.data)));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(alignment(p.out.data)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      lt_.heuristic(handle_, desc(p), w_, x_, out_, out_, wish, most, found.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) refused(p, lt_.status_string(status));
  lt_.preference_destroy(wish);
  found.resize(size_t(count));
  std::erase_if(found, [](const auto& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
  if (found.empty()) refused(p, "no algorithm");
  return found;
}

std::vector<cublasLtMatmulAlgo_t> CublasLt::candidates(const Product& p, int most) {
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const auto& found : ask(p, p.x.rows, most)) algorithms.push_back(found.algo);
  return algorithms;
}

void CublasLt::run_with(const Product& p, const cublasLtMatmulAlgo_t& algorithm) {
  const cublasStatus_t status = enqueue(p, algorithm);
  if (status != CUBLAS_STATUS_SUCCESS) refused(p, lt_.status_string(status));
}

cublasStatus_t CublasLt::enqueue(const Product& p, const cublasLtMatmulAlgo_t& algorithm) {
  describe(p, p.x.rows);
  if (p.bias && p.out.dtype == DType::bf16) {
    CHECK(p.out.cols <= kMaxBias);
    round_bias(context_, p.bias, bias_.data(), int(p.out.cols));
  }
  const float one = 1, zero = 0;
  const int32_t integer_one = 1;
  const bool integer = p.factors == Factors::int8;
  // Zero has the same bits in both.
  return lt_.matmul(handle_, desc(p), integer ? static_cast<const void*>(&integer_one) : &one, p.w, w_,
                    p.x.data, x_, &zero, p.out.data, out_, p.out.data, out_, &algorithm, workspace_.data(),
                    workspace_.bytes(), context_.stream);
}

CublasLt::Key CublasLt::key_of(const Product& p, int64_t rows, bool bias) {
  return {rows,         p.out.cols,           p.x.cols, p.x.stride,
          p.out.stride, p.out.dtype,          bias,     std::min(alignment(p.x.data), alignment(p.out.data)),
          p.factors,    p.w_scales != nullptr};
}

void CublasLt::keep(const Product& p, const cublasLtMatmulAlgo_t& algorithm) {
  for (bool bias : {false, true}) chosen_.insert_or_assign(key_of(p, rounded_rows(p.x.rows), bias), algorithm);
}

void CublasLt::run(const Product& p) {
  const bool bias = p.bias != nullptr;
  if (!own_.empty())
    if (const auto own = own_.find(key_of(p, p.x.rows, bias)); own != own_.end())
      return run_with(p, own->second);
  const int64_t rounded = rounded_rows(p.x.rows);
  const Key key = key_of(p, rounded, bias);
  auto found = chosen_.find(key);
  if (found == chosen_.end()) found = chosen_.emplace(key, ask(p, rounded, 1).front().algo).first;
  const cublasStatus_t status = enqueue(p, found->second);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) refused(p, lt_.status_string(status));
  // No product was enqueued: what does for the rounded number of rows does not for this one.
  LOG(debug, "cuBLASLt: {} rows, {} to {}: its algorithm for {} rows does not do", p.x.rows, p.x.cols,
      p.out.cols, rounded);
  run_with(p, own_.emplace(key_of(p, p.x.rows, bias), ask(p, p.x.rows, 1).front().algo).first->second);
}

}  // namespace sluice::cuda
