#include "tensor/cuda/linear/finish.h"

#include <cuda_bf16.h>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"

namespace sluice::cuda {
namespace {

// A thread has four columns of a row: 16 bytes of sums.
constexpr int kThreads = 256, kEach = 4;

template <typename Out>
__device__ __forceinline__ void store_four(Out* out, const float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = Out(v[i]);
}

template <typename Sum>
struct alignas(16) Four {
  Sum x, y, z, w;
};

template <typename Sum, typename Out>
__global__ void __launch_bounds__(kThreads)
    scale_sums_rows(const Four<Sum>* sums, const float* x_scales, const float* w_scales, const float* bias,
                    Out* out, int64_t out_stride, int fours) {
  let_next_start();
  wait_for_previous();
  const int at = int(blockIdx.x * kThreads + threadIdx.x);
  if (at >= fours) return;
  const int64_t row = blockIdx.y;
  const Four<Sum> sum = sums[row * fours + at];
  const float4 w = reinterpret_cast<const float4*>(w_scales)[at];
  const float4 b = bias ? reinterpret_cast<const float4*>(bias)[at] : float4{};
  const float x = x_scales[row];
  store_four(out + row * out_stride + int64_t(at) * kEach,
             {float(sum.x) * (w.x * x) + b.x, float(sum.y) * (w.y * x) + b.y, float(sum.z) * (w.z * x) + b.z,
              float(sum.w) * (w.w * x) + b.w});
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    add_bias_rows(const float* bias, Out* out, int64_t out_stride, int columns) {
  let_next_start();
  wait_for_previous();
  const int at = int(blockIdx.x * kThreads + threadIdx.x);
  if (at >= columns) return;
  Out& to = out[blockIdx.y * out_stride + at];
  to = Out(float(to) + bias[at]);
}

dim3 grid_for(int64_t each_row, int64_t rows) {
  CHECK(rows > 0 && rows <= 65535);
  return {unsigned((each_row + kThreads - 1) / kThreads), unsigned(rows)};
}

}  // namespace

template <typename Sum>
void scale_sums(const Context& context, const Sum* sums, const float* x_scales, const float* w_scales,
                const float* bias, const Tensor& out) {
  CHECK(out.cols % kEach == 0 && (out.dtype == DType::bf16 || out.dtype == DType::f32));
  const int fours = int(out.cols / kEach);
  const auto enqueue = [&](auto* kernel, auto* to) {
    launch(context, kernel, grid_for(fours, out.rows), dim3(kThreads), 0,
           reinterpret_cast<const Four<Sum>*>(sums), x_scales, w_scales, bias, to, out.stride, fours);
  };
  if (out.dtype == DType::f32)
    enqueue(scale_sums_rows<Sum, float>, out.row<float>(0));
  else
    enqueue(scale_sums_rows<Sum, __nv_bfloat16>, out.row<__nv_bfloat16>(0));
}

template void scale_sums(const Context&, const int32_t*, const float*, const float*, const float*,
                         const Tensor&);
template void scale_sums(const Context&, const float*, const float*, const float*, const float*, const Tensor&);

void add_bias(const Context& context, const float* bias, const Tensor& out) {
  const auto enqueue = [&](auto* kernel, auto* to) {
    launch(context, kernel, grid_for(out.cols, out.rows), dim3(kThreads), 0, bias, to, out.stride,
           int(out.cols));
  };
  if (out.dtype == DType::f32)
    enqueue(add_bias_rows<float>, out.row<float>(0));
  else
    enqueue(add_bias_rows<__nv_bfloat16>, out.row<__nv_bfloat16>(0));
}

}  // namespace sluice::cuda
