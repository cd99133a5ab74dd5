// out[m, n] = x[m, k] · w[n, k]ᵀ (+ bias) for many rows and 4-bit weights.
//
// The factors are swapped, so that the weights are the operand which the tensor cores take from registers: two
// warpgroups turn 64 rows of w each into bf16 (q - z, exactly where zeros are integers) while their last
// products run, x comes from shared memory, and a producer thread keeps both coming (TMA). Sums of a group are
// float32 in registers; there they meet the scale. Where tiles are fewer than multiprocessors, blocks of a
// cluster share out k and add their sums in shared memory, in the order of k.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/int4_choice.h"

namespace sluice::cuda {

// Whether such a kernel was compiled; reads the list that int4_gemm() takes its kernel from.
bool int4_gemm_supports(const Int4GemmConfig& config, int group);
// Whether x and out suit it: out of any stride; x 16-byte aligned with a stride that is a multiple of 8.
bool int4_gemm_supports(const LinearArgs& a);

// Once, before any capture: raises the kernels' limits of shared memory.
void int4_gemm_prepare();
// Enqueues the product. `weights` is in `layout` (a.w's parts are not read), 128-byte aligned, its zeros
// integers from 0 to 127 unless config.odd_zeros.
void int4_gemm(const Context& context, const LinearArgs& a, const void* weights, const Int4Layout& layout,
               const Int4GemmConfig& config);

}  // namespace sluice::cuda
