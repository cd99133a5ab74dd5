// How precisely keys and values are kept, block by block, and how tables name a block's place.
//
// The pool is an array of slots of one size. A slot holds one block in full precision, or two of a half tier,
// or four of a quarter tier, each with its scales; so precision can change block by block without two sizes of
// memory getting in each other's way, and nothing ever has to be moved to make room.
//
// What a tier keeps of a head's keys and values (scales and minima are half-precision or bf16 numbers, rounded
// before they are used to quantize; how the bytes lie is the backend's own):
//   int8  per token: x = scale * q, q in -127..127, scale = largest |x| / 127
//   fp8   per token: x = scale * q, q an E4M3 number up to 448, scale = largest |x| / 448
//   int4  x = min + scale * q, q in 0..15: keys per channel over the tokens of a block, since some channels are
//         much larger than others; values per token (KIVI, arXiv 2402.02750)
#pragma once

#include <cstdint>

namespace sluice {

// `full` is the backend's kv_dtype. Blocks are written in full precision and converted when they are whole.
enum class KvTier : uint8_t { full, int8, fp8, int4 };
inline constexpr int kKvTiers = 4;

constexpr const char* kv_tier_name(KvTier tier) {
  return tier == KvTier::full ? "full" : tier == KvTier::int8 ? "int8" : tier == KvTier::fp8 ? "fp8" : "int4";
}

// Quarters of a slot that a block takes.
inline constexpr int kSlotUnits = 4;
constexpr int kv_units(KvTier tier) { return tier == KvTier::full ? 4 : tier == KvTier::int4 ? 1 : 2; }

// A place as tables have it: kNoKvRef behind a window, else the tier and the block's number among blocks of its
// size: it begins kv_units(tier) * index quarters of a slot from the pool's start. A full block's reference is
// its slot's number.
using KvRef = int32_t;
inline constexpr KvRef kNoKvRef = -1;
inline constexpr int kKvTierShift = 28;

constexpr KvRef kv_ref(KvTier tier, int32_t index) { return int32_t(tier) << kKvTierShift | index; }
constexpr KvTier kv_tier(KvRef ref) { return KvTier(ref >> kKvTierShift); }
constexpr int32_t kv_index(KvRef ref) { return ref & ((1 << kKvTierShift) - 1); }
// Quarters of a slot before it.
constexpr int64_t kv_first_unit(KvRef ref) { return int64_t(kv_index(ref)) * kv_units(kv_tier(ref)); }

}  // namespace sluice
