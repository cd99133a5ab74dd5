// Where keys and values lie on the card. A block holds, per layer of its group, the keys of all kv heads and
// then their values; each head's block_tokens x head_dim bf16 are contiguous, token by token:
//   [layer in group][keys, values][G][block_tokens][D]
// So the whole pool is one matrix [rows, D] of bf16, one row per (block, layer, keys or values, head, token);
// one TMA descriptor over that matrix serves all layers.
//
// A block in a small tier (tensor/kv_tier.h) is [layer][kv head] of strips, which kv_tiers/strip.h describes. A
// slot is then as large as four blocks of int4 with their scales, and begins at a whole row of any width.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace sluice::cuda {

struct KvRows {
  int block_tokens, layers, kv_heads, head_dim;

  constexpr explicit KvRows(const KvGeometry& g)
      : block_tokens(g.block_tokens), layers(g.layers_per_group), kv_heads(g.kv_heads), head_dim(g.head_dim) {}

  // Of a block in full precision.
  constexpr int64_t block_rows() const { return int64_t(layers) * 2 * kv_heads * block_tokens; }
  size_t block_bytes() const { return size_t(block_rows()) * size_t(head_dim) * 2; }
  // First row of a layer within a block; its values begin value_rows() later; head h at h * block_tokens.
  constexpr int64_t layer_row(int layer_in_group) const {
    return int64_t(layer_in_group) * 2 * kv_heads * block_tokens;
  }
  constexpr int64_t value_rows() const { return int64_t(kv_heads) * block_tokens; }
  // Of one layer of a block, keys and values.
  constexpr int64_t layer_rows() const { return 2 * value_rows(); }
};

// Tiers are for blocks of 64 tokens and heads of these widths; for other models they are refused (needs.h).
inline constexpr int kStripTokens = 64;
constexpr bool strips_support(int block_tokens, int head_dim) {
  return block_tokens == kStripTokens && (head_dim == 64 || head_dim == 128 || head_dim == 256);
}

// Bytes of a strip: numbers, then scales and minima, in half precision.
constexpr int strip_bytes(KvTier tier, int head_dim) {
  const int numbers = 2 * kStripTokens * head_dim;
  return tier == KvTier::int4 ? numbers / 2 + head_dim * 4 + kStripTokens * 4 : numbers + kStripTokens * 4;
}

// Where decode is sparse a block, whatever its tier, ends with the bounds of its keys:
//   [layer in group][G][lowest, highest][D] bf16
inline size_t bounds_bytes(const KvGeometry& g) {
  return g.sparse.on() ? size_t(g.layers_per_group) * size_t(g.kv_heads) * size_t(g.head_dim) * 4 : 0;
}

// Of a slot.
inline size_t slot_bytes(const KvGeometry& g) {
  const KvRows rows(g);
  if (!g.tiered) return rows.block_bytes() + bounds_bytes(g);
  constexpr size_t kAlign = 256;  // of a quarter, so that a slot is a multiple of the widest row, 512
  const size_t quarter =
      size_t(g.layers_per_group) * size_t(g.kv_heads) * size_t(strip_bytes(KvTier::int4, g.head_dim)) +
      bounds_bytes(g);
  return kSlotUnits * ((quarter + kAlign - 1) / kAlign * kAlign);
}

}  // namespace sluice::cuda
