// A word of the layout (int4_layout.h) as the tensor cores' A operand.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {

inline constexpr float kInt4Offset = 128;  // int4_to_bf16's values are so much larger

// a[j] = 128 + q, two bf16 each, exactly: at 128 the last place of bf16 is 1.
__device__ __forceinline__ void int4_to_bf16(uint32_t word, uint32_t (&a)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(a[j]) : "r"(word >> (4 * j)));  // a & b | c
}

// a[j] = q - zero of the register's row, two bf16 each, for a zero that is no integer: rounded as the weights
// would be if they were stored as bf16. zeros: f16, twice, of the rows of even and odd registers.
__device__ __forceinline__ void int4_to_bf16_less(uint32_t word, const __half2 (&zeros)[2], uint32_t (&a)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t bits;  // 1024 + q, f16
    asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(bits) : "r"(word >> (4 * j)));
    const __half2 q = __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1024));
    const float2 difference = __half22float2(__hsub2(q, zeros[j % 2]));
    a[j] = ptx::pack_bf16(difference.x, difference.y);
  }
}

}  // namespace sluice::cuda
