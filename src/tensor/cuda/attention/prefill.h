// Sequences with more than one row: tiles of query rows against the paged cache, online softmax, float32 sums.
//
// Two kernels behind one contract. `prefill_wgmma` is for head widths 64, 128 and 256 (Hopper's warpgroup
// products, keys and values brought by TMA); `prefill_general` serves every head width up to 256 that is a
// multiple of 8 with mma.sync. attention.cc chooses with prefill_uses_wgmma; nothing else knows of the choice.
//
// Work: items of the plan (sequence, row_begin, row_end), at most prefill_tile_rows each, taken by a persistent
// grid in the plan's order (longest contexts first), for each query head. A row at position p sees cached
// positions p-window+1 (or 0) .. p. row_begin's position is batch.positions[row_begin]; rows of an item have
// consecutive positions. Items in pieces (prefill_wgmma only): each of them leaves sums over its part of the
// keys, and whoever is last joins them, in the order of the context, so the same plan gives the same bits.
#pragma once

#include <cuda.h>

#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"

namespace sluice::cuda {

bool prefill_uses_wgmma(const KvGeometry& geometry);
int prefill_tile_rows(const KvGeometry& geometry);
// Of the tiles in which contexts may be cut into pieces; 0: they may not.
int prefill_tile_tokens(const KvGeometry& geometry);

// Query heads that may share a tile of rows, one to a warpgroup: 2 or 1. Two blocks with as many each are a
// cluster, and all of them read the same kv head.
int prefill_heads_per_tile(const KvGeometry& geometry, int heads);

// Where pieces meet: a slot for each piece of an item and query head (or heads that share a tile), `slot +
// piece * heads + head` of the item, each with a part for every warp.
struct PrefillPieces {
  float4* sums = nullptr;  // [slots][kWarps][D / 8 + 1][32]: outputs as registers hold them; (highest, sum) x 2
  int32_t* arrived = nullptr;  // [slots][kWarps], of piece 0's slots: those that are done; 0 between launches
  static constexpr int kWarps = 8;
};
// Slots that a plan may need on a card; bytes of `sums` for each.
int prefill_slots(int multiprocessors);
size_t prefill_slot_bytes(const KvGeometry& geometry);

// The pool as one matrix of rows of D elements (kv_layout.h), in boxes of one block of tokens x 64 columns,
// 128-byte swizzle. Made once per pool, by bind_pool, where prefill_uses_wgmma.
CUtensorMap prefill_pool_map(std::byte* pool, size_t bytes, const KvGeometry& geometry);
// Raises the kernels' shared memory limits: once, before any capture.
void prefill_prepare(const KvGeometry& geometry);

// With `unpacked`, blocks are where its rows say (kv_tiers.h), not where the batch's table does.
void prefill_wgmma(const Context&, const AttentionArgs&, const PrefillPlan&, const PrefillPieces&,
                   const CUtensorMap& pool_map, const Unpacked* unpacked = nullptr);
void prefill_general(const Context&, const AttentionArgs&, const PrefillPlan&);

}  // namespace sluice::cuda
