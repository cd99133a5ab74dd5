// Loads and stores by which CTAs of a running grid talk to each other: never from or to the L1, each 4 bytes
// whole, in no order. PTX ISA 9.0, sections "ld", "st", "Memory Consistency Model".
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::cuda::ptx {

__device__ __forceinline__ float4 load_relaxed(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float2 load_relaxed(const float2* from) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(float2* to, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.x), "f"(v.y) : "memory");
}

}  // namespace sluice::cuda::ptx
