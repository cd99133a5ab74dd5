#include "kv/block_places.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr KvTier kSmallTiers[] = {KvTier::int8, KvTier::fp8, KvTier::int4};
// Slots looked at for the one whose blocks are the fewest to move.
constexpr size_t kSlotsSeen = 64;

int per_slot(KvTier tier) { return kSlotUnits / kv_units(tier); }
int slots_for(int blocks, KvTier tier) { return (blocks + per_slot(tier) - 1) / per_slot(tier); }

}  // namespace

BlockPlaces::BlockPlaces(int slots, int ids)
    : placement_(slots),
      refs_(size_t(ids), kNoKvRef),
      block_at_(size_t(slots) * kSlotUnits, kNoBlock),
      owned_(size_t(ids), 0),
      slots_(size_t(slots)) {}

bool BlockPlaces::place(BlockId id, KvTier tier) {
  CHECK(refs_[size_t(id)] == kNoKvRef, "a block has a place already");
  const KvRef ref = placement_.take(tier);
  if (ref == kNoKvRef) return false;
  refs_[size_t(id)] = ref;
  block_at_[size_t(kv_first_unit(ref))] = id;
  return true;
}

void BlockPlaces::remove(BlockId id) {
  const KvRef ref = std::exchange(refs_[size_t(id)], kNoKvRef);
  CHECK(!owned_[size_t(id)]);
  block_at_[size_t(kv_first_unit(ref))] = kNoBlock;
  placement_.drop(ref);
}

void BlockPlaces::set_owned(BlockId id, bool owned) {
  CHECK(owned != bool(owned_[size_t(id)]));
  owned_[size_t(id)] = owned;
  count(refs_[size_t(id)], owned ? 1 : -1, 0);
}

bool BlockPlaces::move(BlockId id, KvTier tier, std::vector<BlockMove>& moves) {
  const KvRef to = placement_.take(tier);
  if (to == kNoKvRef) return false;
  CHECK(moves.size() < moves.capacity());
  const KvRef from = std::exchange(refs_[size_t(id)], to);
  moves.emplace_back(from, to);
  block_at_[size_t(kv_first_unit(from))] = kNoBlock;
  block_at_[size_t(kv_first_unit(to))] = id;
  const int owned = owned_[size_t(id)];
  count(to, owned, 0);
  count(from, -owned, 1);
  return true;
}

void BlockPlaces::land(const BlockMove& move) {
  count(move.first, 0, -1);
  placement_.drop(move.first);
}

void BlockPlaces::count(KvRef ref, int owned, int leaving) {
  Slot& slot = slots_[size_t(slot_of(ref))];
  const bool was_owned = slot.owned > 0, was_held = was_owned || slot.leaving > 0,
             was_coming = was_held && !was_owned;
  slot.owned = uint8_t(slot.owned + owned);
  slot.leaving = uint8_t(slot.leaving + leaving);
  const bool held = slot.owned + slot.leaving > 0, coming = held && slot.owned == 0;
  owned_units_ += owned * kv_units(kv_tier(ref));
  leaving_units_ += leaving * kv_units(kv_tier(ref));
  held_slots_ += held - was_held;
  coming_slots_ += coming - was_coming;
  owned_slots_of_[size_t(kv_tier(ref))] += (slot.owned > 0) - was_owned;
  owned_blocks_[size_t(kv_tier(ref))] += owned;
}

int BlockPlaces::closable_slots() const {
  int slots = 0;
  for (const KvTier tier : kSmallTiers)
    slots += owned_slots_of_[size_t(tier)] - slots_for(owned_blocks_[size_t(tier)], tier);
  return slots;
}

int BlockPlaces::closable_now() const {
  int slots = 0;
  for (const KvTier tier : kSmallTiers)
    slots += placement_.opened(tier) - slots_for(placement_.blocks(tier), tier);
  return slots;
}

int BlockPlaces::close_gaps(int most, std::vector<BlockMove>& moves) {
  const size_t before = moves.size();
  const auto left = [&] { return most - int(moves.size() - before); };
  for (const KvTier tier : kSmallTiers) {
    for (int slot; left() > 0 && (slot = emptiest(tier, before, moves)) >= 0;) {
      const int blocks = placement_.blocks_in(slot);
      if (blocks > left() || placement_.gaps_beside(tier, slot) < blocks) break;
      placement_.close(slot);
      for (int unit = slot * kSlotUnits; unit < (slot + 1) * kSlotUnits; ++unit)
        if (block_at_[size_t(unit)] != kNoBlock)
          CHECK(move(block_at_[size_t(unit)], tier, moves), "gaps were counted");
    }
  }
  return int(moves.size() - before);
}

// A slot that blocks are just leaving will be looked at again when they have left, and one that this step's
// moves go to in the next: it would have to be read after it is written. -1: there is no other.
int BlockPlaces::emptiest(KvTier tier, size_t moved_from, const std::vector<BlockMove>& moves) const {
  const auto filled = [&](int slot) {
    return std::any_of(moves.begin() + ptrdiff_t(moved_from), moves.end(),
                       [&](const BlockMove& m) { return slot_of(m.second) == slot; });
  };
  const auto gaps = placement_.gaps(tier);
  int best = -1;
  for (size_t i = 0; i < std::min(gaps.size(), kSlotsSeen); ++i) {
    const int slot = gaps[i];
    if (slots_[size_t(slot)].owned == 0 || slots_[size_t(slot)].leaving > 0 || filled(slot)) continue;
    if (best < 0 || placement_.blocks_in(slot) < placement_.blocks_in(best)) best = slot;
  }
  return best;
}

}  // namespace sluice
