#include "tensor/cuda/linear/bias.h"

#include <cuda_bf16.h>

#include "tensor/cuda/device/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) round_bias_kernel(const float* bias, __nv_bfloat16* out, int n) {
  let_next_start();
  wait_for_previous();  // the product before may still read `out`
  if (const int i = int(blockIdx.x) * kThreads + int(threadIdx.x); i < n) out[i] = __float2bfloat16_rn(bias[i]);
}

}  // namespace

void round_bias(const Context& context, const float* bias, void* bf16, int n) {
  launch(context, round_bias_kernel, dim3(unsigned((n + kThreads - 1) / kThreads)), dim3(kThreads), 0, bias,
         static_cast<__nv_bfloat16*>(bf16), n);
}

}  // namespace sluice::cuda
