// out[m, n] = x[m, k] · w[n, k]ᵀ (+ bias) for few rows (m <= 16) and 4-bit weights, at the pace at which memory
// delivers them.
//
// As in stream_gemm.h the factors are swapped: rows of w are the tensor cores' 16 rows, rows of x their
// columns. Each of a block's warps keeps a ring of stages of its own full (one copy each, asked for by
// one of its lanes) and multiplies what comes, so that warps never wait for one another but at a tile's end.
// Warps share out a tile by rows of w and by columns; blocks of a cluster share out the columns. Where columns
// are shared, every warp writes its float32 sums to the block that owns the rows, in whose shared memory they
// are added in the order of k, after one barrier. x (the block's columns of it) lies in shared memory as a
// whole.
//
// Integers become bf16 exactly (128 + q), are multiplied and summed per group, and only the sums meet scale and
// zero, in float32: s * (sum((128 + q) x) - (128 + z) * sum(x)); sum(x) comes from a product with ones.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/int4_choice.h"

namespace sluice::cuda {

inline constexpr int kMostInt4StreamRows = 16;

// Whether such a kernel was compiled; reads the list that int4_stream() takes its kernel from.
bool int4_stream_supports(const Int4StreamConfig& config, int group);
// Whether x and out suit it: out of any stride; x 16-byte aligned with a stride that is a multiple of 8.
bool int4_stream_supports(const LinearArgs& a);

// Once, before any capture: raises the kernels' limits of shared memory.
void int4_stream_prepare();
// Enqueues the product. `weights` is in `layout` (a.w's parts are not read), 128-byte aligned.
void int4_stream(const Context& context, const LinearArgs& a, const void* weights, const Int4Layout& layout,
                 const Int4StreamConfig& config);

}  // namespace sluice::cuda
