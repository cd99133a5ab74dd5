#include "tensor/cuda/linear/cublaslt.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/cuda/linear/bias.h"

namespace sluice::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int64_t kMaxBias = int64_t{1} << 18;

// Largest power of two that divides the address, at most 256 (what cudaMalloc gives, and cuBLAS's default).
uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return address == 0 ? 256 : uint32_t(std::min<uintptr_t>(address & -address, 256));
}

cudaDataType_t type_of(DType t) { return t == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

}  // namespace

int64_t rounded_rows(int64_t rows) {
  const int64_t step = std::max<int64_t>(8, int64_t(std::bit_ceil(uint64_t(rows))) / 16);
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
  made->check(made->lt_.desc_create(&made->desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  made->check(made->lt_.desc_set(made->desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
              "TRANSA");
  for (cublasLtMatrixLayout_t* layout : {&made->w_, &made->x_, &made->out_})
    made->check(made->lt_.layout_create(layout, CUDA_R_16BF, 8, 8, 8), "MatrixLayoutCreate");
  return made;
}

CublasLt::~CublasLt() {
  for (cublasLtMatrixLayout_t layout : {w_, x_, out_})
    if (layout) lt_.layout_destroy(layout);
  if (desc_) lt_.desc_destroy(desc_);
  if (handle_) lt_.destroy(handle_);
}

// Sets descriptor and layouts for `a` with this many rows.
void CublasLt::describe(const LinearArgs& a, int64_t rows) {
  const auto layout = [&](cublasLtMatrixLayout_t l, DType dtype, int64_t inner, int64_t outer, int64_t stride) {
    const uint32_t type = uint32_t(type_of(dtype));
    const uint64_t height = uint64_t(inner), width = uint64_t(outer);
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type), "TYPE");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &height, sizeof height), "ROWS");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_COLS, &width, sizeof width), "COLS");
    check(lt_.layout_set(l, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride), "LD");
  };
  layout(w_, DType::bf16, a.w.cols, a.w.rows, a.w.cols);
  layout(x_, DType::bf16, a.x.cols, rows, a.x.stride);
  layout(out_, a.out.dtype, a.out.cols, rows, a.out.stride);

  const cublasLtEpilogue_t epilogue = a.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  check(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue), "EPILOGUE");
  if (!a.bias) return;
  const void* bias = a.out.dtype == DType::f32 ? static_cast<const void*>(a.bias) : bias_.data();
  const int32_t type = type_of(a.out.dtype);
  check(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), "BIAS_POINTER");
  check(lt_.desc_set(desc_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type), "BIAS_DATA_TYPE");
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasLt::ask(const LinearArgs& a, int64_t rows, int most) {
  describe(a, rows);
  cublasLtMatmulPreference_t wish = nullptr;
  check(lt_.preference_create(&wish), "PreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    check(lt_.preference_set(wish, what, &value, sizeof value), "PreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_.bytes()));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(alignment(a.w.parts[0].data.data())));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(alignment(a.x.data)));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(alignment(a.out.data)));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(alignment(a.out.data)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  check(lt_.heuristic(handle_, desc_, w_, x_, out_, out_, wish, most, found.data(), &count),
        "MatmulAlgoGetHeuristic");
  lt_.preference_destroy(wish);
  found.resize(size_t(count));
  std::erase_if(found, [](const auto& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
  CHECK(!found.empty(), "cuBLASLt knows no algorithm for a linear's shape");
  return found;
}

std::vector<cublasLtMatmulAlgo_t> CublasLt::candidates(const LinearArgs& a, int most) {
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const auto& found : ask(a, a.x.rows, most)) algorithms.push_back(found.algo);
  return algorithms;
}

void CublasLt::run_with(const LinearArgs& a, const cublasLtMatmulAlgo_t& algorithm) {
  describe(a, a.x.rows);
  if (a.bias && a.out.dtype == DType::bf16) {
    CHECK(a.w.rows <= kMaxBias);
    round_bias(context_, a.bias, bias_.data(), int(a.w.rows));
  }
  const float one = 1, zero = 0;
  check(lt_.matmul(handle_, desc_, &one, a.w.parts[0].data.data(), w_, a.x.data, x_, &zero, a.out.data, out_,
                   a.out.data, out_, &algorithm, workspace_.data(), workspace_.bytes(), context_.stream),
        "Matmul");
}

void CublasLt::run(const LinearArgs& a) {
  const int64_t rows = rounded_rows(a.x.rows);
  const Key key{
      rows,         a.w.rows,    a.w.cols,          a.x.stride,
      a.out.stride, a.out.dtype, a.bias != nullptr, std::min(alignment(a.x.data), alignment(a.out.data))};
  auto found = chosen_.find(key);
  if (found == chosen_.end()) found = chosen_.emplace(key, ask(a, rows, 1).front().algo).first;
  run_with(a, found->second);
}

}  // namespace sluice::cuda
