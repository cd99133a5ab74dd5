// Functions of the special function unit that CUDA C++ does not name. PTX ISA 9.0, section "ex2".
#pragma once

namespace sluice::cuda::ptx {

// 2^x to 2 units of the last place; results below 2^-126 are 0. (exp2f spends three more instructions on
// those.)
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace sluice::cuda::ptx
