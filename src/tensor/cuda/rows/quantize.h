// Eight floats as eight bits, for kernels that write a row quantized (quantized_rows.h says how).
#pragma once

#include <cuda_fp8.h>

#include "tensor/cuda/rows/quantized_rows.h"

namespace sluice::cuda {

inline constexpr float kMostFp8 = 448, kMostInt8 = 127;

// A row's (or block's) scale and its inverse, from the largest magnitude. Where that is zero any scale would
// do; where it is so small that its inverse is none, the row becomes zeros.
struct RowScale {
  float scale, inverse;

  template <Factors kFactors>
  static __device__ __forceinline__ RowScale of(float largest) {
    constexpr float kMost = kFactors == Factors::int8 ? kMostInt8 : kMostFp8;
    constexpr float kLeast = 1e-30f;
    const float magnitude = largest < kLeast ? kLeast : largest;  // NaN and infinity pass
    return {magnitude / kMost, kMost / magnitude};
  }
};

template <Factors kFactors>
__device__ __forceinline__ uint32_t quantize_four(float a, float b, float c, float d) {
  if constexpr (kFactors == Factors::int8) {
    const auto byte = [](float f) { return uint32_t(__float2int_rn(f)) & 0xff; };
    return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
  } else {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3),
                   high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
  }
}

// fmaxf that keeps NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

// The largest of a warp's values, for each of its threads.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = max_or_nan(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

// The largest of all threads' values, for every thread; `partial` (a float per warp) serves one call of a block
// only.
__device__ __forceinline__ float block_max(float value, float* partial) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return warp_max(lane < blockDim.x / 32 ? partial[lane] : 0);
}

}  // namespace sluice::cuda
