// Loads whose place in the program matters. PTX ISA 9.0, section "ld".
#pragma once

#include <cstdint>

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

// From shared memory, by its 32-bit address: a pointer that went through a struct is a generic one, whose loads
// are slower and whose arithmetic has 64 bits.
__device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

}  // namespace sluice::cuda::ptx
