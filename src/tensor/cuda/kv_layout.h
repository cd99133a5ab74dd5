// Where keys and values lie on the card. A block holds, per layer of its group, the keys of all kv heads and
// then their values; each head's block_tokens x head_dim bf16 are contiguous, token by token:
//   [layer in group][keys, values][G][block_tokens][D]
// So the whole pool is one matrix [rows, D] of bf16, one row per (block, layer, keys or values, head, token);
// one TMA descriptor over that matrix serves all layers.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace sluice::cuda {

struct KvRows {
  int block_tokens, layers, kv_heads, head_dim;

  explicit KvRows(const KvGeometry& g)
      : block_tokens(g.block_tokens), layers(g.layers_per_group), kv_heads(g.kv_heads), head_dim(g.head_dim) {}

  int64_t block_rows() const { return int64_t(layers) * 2 * kv_heads * block_tokens; }
  size_t block_bytes() const { return size_t(block_rows()) * size_t(head_dim) * 2; }
  // First row of a layer within a block; its values begin value_rows() later; head h at h * block_tokens.
  int64_t layer_row(int layer_in_group) const { return int64_t(layer_in_group) * 2 * kv_heads * block_tokens; }
  int64_t value_rows() const { return int64_t(kv_heads) * block_tokens; }
};

}  // namespace sluice::cuda
