// Decode over a part of long contexts (tensor/sparse_decode.h): the blocks that each sequence with one row
// reads, chosen on the card for every layer and kv head, so that a recorded step serves any lengths.
//
// A choice is a table of its own for each kv head, in the order of the context. Decode reads it in place of the
// sequence's table and needs to know nothing else: to it the context is as long as what was chosen, since only
// the last block, which is always chosen, may not be whole. Sequences that read all have all of their table in
// it.
//
// Bounds of a block's keys lie at its end (kv_layout.h). They are made in the layer and step that make the
// block whole: of prompts by a launch of its own, of single rows by the way.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// In device memory.
struct SparseChoice {
  float* scores = nullptr;  // [S, G, stride], of blocks 1 .. ; what they mean: sparse_decode.h
  KvRef* blocks = nullptr;  // [S, G, stride]
  int stride = 0;           // blocks of the longest context
};

// Of the longest context that a choice is made for.
inline constexpr int kMostSparseBlocks = 24 << 10;

// Raises the kernels' shared memory limits for contexts of `stride` blocks: once, before any capture.
void sparse_prepare(const KvGeometry& geometry, int heads, int stride);
// Enqueues: bounds of the blocks that sequences with several rows have made whole in this step and layer.
void bound_prompts(const Context& context, const AttentionArgs& args);
// Enqueues: the same of sequences with one row, and what these read.
void choose_blocks(const Context& context, const AttentionArgs& args, const SparseChoice& choice);

}  // namespace sluice::cuda
