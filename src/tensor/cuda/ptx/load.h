// Loads whose place in the program matters. PTX ISA 9.0, section "ld".
#pragma once

namespace sluice::cuda::ptx {

// Issued where it stands, for what is wanted before wait_for_previous(): weights. A plain load there (__ldg, or
// its PTX as volatile asm) is moved by ptxas down to its first use, behind the reduction; a relaxed load is not
// moved over griddepcontrol.wait. Scope cta: it may hit in L1.
__device__ __forceinline__ float4 load_here(const float4* at) {
  float4 v;
  asm volatile("ld.relaxed.cta.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at));
  return v;
}

__device__ __forceinline__ float load_here(const float* at) {
  float v;
  asm volatile("ld.relaxed.cta.global.f32 %0, [%1];" : "=f"(v) : "l"(at));
  return v;
}

}  // namespace sluice::cuda::ptx
