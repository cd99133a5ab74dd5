// Blocks between precisions (tensor/kv_tier.h, strip.h): what a step's plan moves before its ops, and what
// prefill wants back in bf16. Blocks of 64 tokens, heads of 64, 128 or 256 columns. Scales round as ref/ does,
// bit for bit.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Raises the kernels' shared memory limits: once, before any capture.
void kv_tiers_prepare(const KvGeometry& geometry);

// Enqueues the batch's moves, in any order.
void move_blocks(const Context& context, const MoveBlocksArgs& a);

// Prompts read bf16: what they need of small blocks is unpacked, a layer at a time, into a stretch of rows
// behind the pool. Where a step's prompts have more blocks than it holds, they take turns in rounds.
struct Unpacked {
  std::byte* pool = nullptr;  // rows are numbered from here, as in the pool's tensor map
  int64_t first_row = 0;      // of the stretch
  int blocks = 0;             // that it holds: at least those of one context
  int row_blocks = 0;         // entries of a row of `rows`
  // In device memory:
  int32_t* order = nullptr;  // [S] sequences with several rows
  int2* places = nullptr;    // [S] round and first block in the stretch, of those
  int32_t* rows =
      nullptr;  // [S, row_blocks] for one layer: the pool row where its keys of a block begin, or -1
};

// Rounds that prompts of so many blocks may take.
int most_rounds(const Unpacked& to, int prompt_blocks);
// Enqueues: who takes which place in which round.
void place_prompts(const Context& context, const BatchInput& batch, const Unpacked& to);
// Enqueues: the blocks of one layer that the prompts of a round read.
void unpack_blocks(const Context& context, const BatchInput& batch, const KvGeometry& geometry,
                   const KvLayer& kv, const Unpacked& to, int round);

}  // namespace sluice::cuda
