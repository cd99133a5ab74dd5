// chunk_kernel.h and tier_kernels.h compiled for one instruction set (cpu/simd/README.md says how and why so).
#include <immintrin.h>

#include "tensor/cpu/attention/chunk_kernel.h"
#include "tensor/cpu/attention/tier_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi")
#endif

namespace sluice::cpu {
namespace {
// Each needs the one before.
// clang-format off
#include "tensor/cpu/simd/vec_avx512.inc"
#include "tensor/cpu/simd/math.inc"
#include "tensor/cpu/attention/chunk_kernel.inc"
#include "tensor/cpu/attention/tier_kernels.inc"
// clang-format on
}  // namespace

const ChunkKernels kChunkKernelsAvx512 = {pack_q, chunk, fold, finish};
const TierKernels kTierKernelsAvx512 = {encode_int8, encode_int4, decode_int8, decode_int4};

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
