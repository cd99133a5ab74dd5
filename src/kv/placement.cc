#include "kv/placement.h"

#include <bit>

#include "base/check.h"

namespace sluice {
namespace {

constexpr uint8_t kAllTaken = (1 << kSlotUnits) - 1;

}  // namespace

Placement::Placement(int slots) : slots_(size_t(slots)) {
  CHECK(slots >= 0 && slots < (1 << kKvTierShift) / kSlotUnits, "more slots than a reference can name");
  empty_.reserve(slots_.size());
  for (int slot = slots - 1; slot >= 0; --slot) empty_.push_back(slot);
  for (auto& gaps : gaps_) gaps.reserve(slots_.size());
}

KvRef Placement::take(KvTier tier) {
  auto& gaps = gaps_[size_t(tier)];
  int slot;
  if (!gaps.empty()) {
    slot = gaps.back();
  } else if (!empty_.empty()) {
    slot = empty_.back();
    empty_.pop_back();
    slots_[size_t(slot)].tier = tier;
    ++opened_[size_t(tier)];
  } else {
    return kNoKvRef;
  }
  Slot& s = slots_[size_t(slot)];
  int part = 0;
  while (s.taken & bits(tier, part)) ++part;
  s.taken |= bits(tier, part);
  set_gap(slot, s.taken != kAllTaken);
  used_units_ += kv_units(tier);
  ++blocks_[size_t(tier)];
  return kv_ref(tier, slot * (kSlotUnits / kv_units(tier)) + part);
}

void Placement::drop(KvRef ref) {
  CHECK(ref >= 0);
  const KvTier tier = kv_tier(ref);
  const int per_slot = kSlotUnits / kv_units(tier);
  const int slot = kv_index(ref) / per_slot;
  CHECK(slot < slots(), "no such place");
  Slot& s = slots_[size_t(slot)];
  const uint8_t mine = bits(tier, kv_index(ref) % per_slot);
  CHECK(s.tier == tier && (s.taken & mine) == mine, "nothing lies there");
  s.taken = uint8_t(s.taken & ~mine);
  used_units_ -= kv_units(tier);
  --blocks_[size_t(tier)];
  set_gap(slot, s.taken != 0 && !s.closed);
  if (s.taken) return;
  s.closed = false;
  empty_.push_back(slot);
  --opened_[size_t(tier)];
}

void Placement::close(int slot) {
  CHECK(slots_[size_t(slot)].taken != 0);
  slots_[size_t(slot)].closed = true;
  set_gap(slot, false);
}

int Placement::blocks_in(int slot) const {
  const Slot& s = slots_[size_t(slot)];
  return std::popcount(s.taken) / kv_units(s.tier);
}

int Placement::gaps_beside(KvTier tier, int slot) const {
  int room = 0;
  for (const int32_t other : gaps(tier))
    if (other != slot) room += kSlotUnits / kv_units(tier) - blocks_in(other);
  return room;
}

int Placement::room(KvTier tier) const {
  return free_slots() * (kSlotUnits / kv_units(tier)) + gaps_beside(tier, -1);
}

void Placement::set_gap(int slot, bool gap) {
  Slot& s = slots_[size_t(slot)];
  auto& gaps = gaps_[size_t(s.tier)];
  if (gap == (s.gap >= 0)) return;
  if (gap) {
    s.gap = int32_t(gaps.size());
    gaps.push_back(slot);
    return;
  }
  slots_[size_t(gaps.back())].gap = s.gap;
  gaps[size_t(s.gap)] = gaps.back();
  gaps.pop_back();
  s.gap = -1;
}

}  // namespace sluice
