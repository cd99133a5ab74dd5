// row_kernels.h compiled for one instruction set (cpu/simd/README.md says how and why so).
#include <immintrin.h>

#include "tensor/cpu/rows/row_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,popcnt,bmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,popcnt,bmi")
#endif

namespace sluice::cpu {
namespace {
// Each needs the one before.
// clang-format off
#include "tensor/cpu/simd/vec_avx2.inc"
#include "tensor/cpu/simd/math.inc"
#include "tensor/cpu/rows/row_kernels.inc"
// clang-format on
}  // namespace

const RowKernels kRowKernelsAvx2 = {rms_norm,
                                    add_rms_norm,
                                    rotate,
                                    store_kv,
                                    scale,
                                    act_mul,
                                    {softcap_logits, arg_max, sum_exp, count_above, collect}};

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
