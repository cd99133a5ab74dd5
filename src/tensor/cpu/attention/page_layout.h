// Where keys and values lie in a block on the CPU. In full precision: pages of kPageTokens tokens,
// [layer][page][kv head] of {K [D][16], V [16][padded D]}, half precision, K padded to the size of V. In the
// small tiers: strips (tier_kernels.h), [layer][kv head]. Where decode is sparse, behind either
// [layer][kv head] of {lowest key [padded D], highest key [padded D]}, half precision.
#pragma once

#include "tensor/backend.h"
#include "tensor/cpu/attention/tier_kernels.h"

namespace sluice::cpu {

struct PageLayout {
  StripShape strip;
  int kv_heads, layers;
  bool tiered, bounded;

  explicit PageLayout(const KvGeometry& g)
      : strip{g.head_dim, g.block_tokens / kPageTokens},
        kv_heads(g.kv_heads),
        layers(g.layers_per_group),
        tiered(g.tiered),
        bounded(g.sparse.on()) {
    CHECK(g.block_tokens % kPageTokens == 0 && g.dtype == DType::f16, "a cache this backend cannot hold");
    CHECK(!g.tiered || strip.pages <= kChunkPages, "scratch holds no longer blocks");
  }

  // Of a slot: where there are tiers, four times the smallest block, which then has room for its scales.
  size_t block_bytes() const {
    const size_t bounds = bounded ? bounds_bytes() : 0;
    return heads() * (tiered ? kSlotUnits * (strip.int4_bytes() + bounds) : strip.full_bytes() + bounds);
  }
  size_t heads() const { return size_t(layers) * size_t(kv_heads); }  // of all layers
  size_t bounds_bytes() const { return 2 * size_t(strip.padded()) * sizeof(uint16_t); }
  size_t strip_bytes(KvTier tier) const {
    return tier == KvTier::int8 ? strip.int8_bytes() : strip.int4_bytes();
  }

  // Of a full block.
  uint16_t* keys(const KvLayer& kv, KvRef block, int page_in_block, int kv_head) const {
    const size_t index =
        (size_t(kv.layer_in_group) * size_t(strip.pages) + size_t(page_in_block)) * size_t(kv_heads) +
        size_t(kv_head);
    return reinterpret_cast<uint16_t*>(kv.pool + size_t(block) * kv.block_bytes) +
           index * strip.page_values() * 2;
  }
  uint16_t* values(uint16_t* keys) const { return keys + strip.page_values(); }

  // [2][padded D] of any block.
  uint16_t* bounds(const KvLayer& kv, KvRef block, int kv_head) const {
    const size_t keys_and_values =
        kv_tier(block) == KvTier::full ? strip.full_bytes() : strip_bytes(kv_tier(block));
    return reinterpret_cast<uint16_t*>(
        kv.pool + size_t(kv_first_unit(block)) * (kv.block_bytes / kSlotUnits) + heads() * keys_and_values +
        (size_t(kv.layer_in_group) * size_t(kv_heads) + size_t(kv_head)) * bounds_bytes());
  }

  // Of a block in a small tier.
  std::byte* strip_of(const KvLayer& kv, KvRef block, int kv_head) const {
    return kv.pool + size_t(kv_first_unit(block)) * (kv.block_bytes / kSlotUnits) +
           (size_t(kv.layer_in_group) * size_t(kv_heads) + size_t(kv_head)) * strip_bytes(kv_tier(block));
  }
};

}  // namespace sluice::cpu
