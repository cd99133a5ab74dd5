// out[m, n] = x[m, k] · w[n, k]ᵀ (+ bias) for few rows (m <= 32), at the pace at which memory delivers w.
//
// The factors are swapped: rows of w are the tensor cores' 64 rows and the rows of x, padded to 8, 16 or 32,
// their columns. One thread block per multiprocessor: one thread keeps a ring of stages in shared memory full
// (TMA), a warpgroup multiplies. It asks for its first weights before it waits for the kernel before, which
// weights allow.
//
// Where n makes tiles of one height that fill the card, a tile belongs to one block. Else the product is cut
// into units (a tile × one stage's columns) that are numbered tile by tile and shared out in equal contiguous
// ranges ("stream-K": Osama et al., 2023), so that every multiprocessor reads the same number of bytes whatever
// n is; tiles that several blocks worked on are joined by the last of them to arrive, from float32 parts in the
// workspace, in the order of k: the result does not depend on who was last. A row's result depends on the row
// and on the padded number of rows alone.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/heuristics.h"

namespace sluice::cuda {

// Whether such a kernel was compiled; reads the list that stream_gemm() takes its kernel from.
bool stream_gemm_supports(const StreamConfig& config);
// Whether x and out suit it: out of any stride; x 16-byte aligned with a stride that is a multiple of 8, k too.
bool stream_gemm_supports(const LinearArgs& a);

// Once, before any capture: raises the kernels' limits of shared memory.
void stream_gemm_prepare();
// Workspace, zero-filled by the caller once and left as it was found: one suffices for all products of a
// stream.
size_t stream_gemm_workspace_bytes(int multiprocessors);
// Enqueues the product. `weights` is bf16 [n, k], row-major, 16-byte aligned (a.w's parts are not read).
void stream_gemm(const Context& context, const LinearArgs& a, const void* weights, const StreamConfig& config,
                 void* workspace);

}  // namespace sluice::cuda
