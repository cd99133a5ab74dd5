// The step's attention work, planned on the device by one small kernel and read by all layers.
//
// Decode: the contexts of all sequences with one row, cut into chunks of kDecodeChunk tokens, times the kv
// heads, laid in a line: sequence by sequence, head by head, chunk by chunk. Every CTA of the persistent grid
// gets the same number of consecutive chunks of that line, whatever the lengths are. So one long context is cut
// into as many pieces as there are CTAs, many short ones are barely cut at all, and no mixture leaves a part of
// the card idle. (A piece length common to all sequences, as the items of a list, was the first idea: 1,024
// units on 264 CTAs leave 3 % idle, mixtures far more.)
//
// Where blocks may be in small tiers, the line is measured in what there is to read instead: a "chunk" is a
// quarter of a slot, and a block belongs to the CTA in whose piece its first quarter lies. Else the CTA with a
// context's newest blocks, those in full, would read more than twice its share.
//
// Prefill: tiles of query rows, longest contexts first; where they leave much of the card idle, cut into pieces
// along the keys (prefill_split.h).
#pragma once

#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

inline constexpr int kDecodeChunk = 64;     // tokens
inline constexpr int kMaxSequences = 1024;  // the plan's kernel has a thread for each
inline constexpr int kMaxWindows = 4;  // kinds of layers: distinct windows, "none" included, and sparse decode

// A sequence with one row, as decode sees it. Padding (kv_length 0) has begin = end = 0 and one chunk, so that
// its output row is written.
struct alignas(16) DecodeEntry {
  int32_t sequence;
  int32_t row;                     // of the step's rows
  int32_t begin, end;              // cached positions that the row sees, or places of those that are read
  int32_t first;                   // chunks of the entries before it, for one head
  int32_t chunks;                  // its own; the first starts at begin rounded down to 16
  int32_t first_block, end_block;  // that the row sees; only in plans by weight
};

// Consecutive chunks of the line: `count` from `chunk` of `head` of `entry` on.
struct alignas(16) DecodeSegment {
  int32_t entry, head, chunk, count;
  // In plans by weight: of the first head's blocks those from here on, and of the last head's those before.
  int32_t begin_block, end_block;
  int32_t unused[2];
  DecodeEntry e;  // entries[entry]
};

// What one CTA does, in order; the first with count 0 ends it. Its chunks are consecutive on the line, but:
// - A head that the end of its share cuts comes first: it joins nothing, and others can have it early.
// - The end of a head, where a CTA before has nothing but a piece of it, comes last: that piece is not there
// earlier.
struct alignas(16) DecodeShare {
  DecodeSegment segments[3];
  int32_t quota;  // chunks of every CTA but the last: chunk x of the line is CTA x / quota's
  int32_t unused[3];
};

// One tile of query rows of one sequence for the prefill kernel, or one of the pieces of what these rows see.
struct PrefillItem {
  int32_t sequence;
  int32_t row_begin, row_end;  // of the step's rows
  int32_t heads = 1;  // query heads that share a tile, each with tile_rows / heads rows; in all items alike
  int32_t piece = 0, pieces = 1;
  int32_t slot =
      0;  // of piece 0's partial sums for the first heads, where there are more pieces (PrefillPieces)
};

// Where prompts take turns (kv_tiers.h): only those whose place has this round are planned for.
struct PrefillRound {
  const int2* places = nullptr;  // [S] round, block; null: all at once
  int round = 0;
};

// In device memory. Plans differ by window: one for full attention, one for each windowed kind of layer.
struct DecodePlan {
  DecodeEntry* entries = nullptr;  // [kMaxSequences + 1]
  DecodeShare* shares = nullptr;   // [ctas]
  int ctas = 0;
  int window = 0;
  // By weight, where not null: [S, before_stride] quarters of the visible blocks in front of each block of a
  // context.
  int32_t* before = nullptr;
  int before_stride = 0;
  int group = 0;  // whose tables are weighed; where layers of several groups share a plan, they are much alike
  // Where on, contexts are as long as what is read of them, in `blocks` [S, G, blocks_stride] in place of the
  // tables (sparse.h). Blocks weigh alike then: which they are is chosen after the plan.
  SparseDecode sparse{};
  const KvRef* blocks = nullptr;
  int blocks_stride = 0;
};
struct PrefillPlan {
  int32_t* count = nullptr;
  PrefillItem* items = nullptr;  // longest first
  int window = 0;
};

// What plans depend on besides the batch and the card; all but kv_heads is of prefill alone, and block_tokens
// of plans by weight too. In tiles of tile_rows, or, with most_heads 2, of half as many where that leaves less
// of them empty.
struct PlanShape {
  int kv_heads = 0;
  int heads = 0;
  int block_tokens = 0;
  int tile_rows = 0;
  int most_heads = 1;   // that may share a tile: 1 or 2
  int tile_tokens = 0;  // in which contexts may be cut; 0: they are not
};

// Enqueues the kernel that fills the plans. CHECKs batch.sequences against kMaxSequences.
void make_plans(const Context& context, const BatchInput& batch, const PlanShape& shape,
                std::span<const DecodePlan> decode, std::span<const PrefillPlan> prefill,
                PrefillRound round = {});
// Items that a plan of prefill may have.
size_t most_prefill_items(int tokens, int sequences, int tile_rows, int multiprocessors);

}  // namespace sluice::cuda
