// Where blocks lie in the pool's memory, by tier (tensor/kv_tier.h). Blocks of a small tier share slots with
// others of their size, and fill the gaps that earlier ones left before a new slot is opened: a gap is at most
// what ended blocks left behind, counted as `wasted`, and is closed by the next block of that size.
//
// Owned by the engine thread. Nothing is allocated after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/kv_tier.h"

namespace sluice {

class Placement {
 public:
  explicit Placement(int slots);

  // A place for a block; kNoKvRef where there is none.
  KvRef take(KvTier tier);
  void drop(KvRef ref);
  // Nothing is placed into this slot any more, until it is empty.
  void close(int slot);

  int slots() const { return int(slots_.size()); }
  int free_slots() const { return int(empty_.size()); }
  // Blocks of a tier that could still be placed.
  int room(KvTier tier) const;
  int blocks(KvTier tier) const { return blocks_[size_t(tier)]; }
  int opened(KvTier tier) const { return opened_[size_t(tier)]; }  // slots that hold any
  int blocks_in(int slot) const;
  // Slots of a tier with room for one more, in no order.
  std::span<const int32_t> gaps(KvTier tier) const { return gaps_[size_t(tier)]; }
  // Blocks for which they have room, this slot left out.
  int gaps_beside(KvTier tier, int slot) const;
  // In quarters of a slot: taken by blocks, and lost in slots that are only partly taken.
  int used_units() const { return used_units_; }
  int wasted_units() const { return (slots() - free_slots()) * kSlotUnits - used_units_; }

 private:
  struct Slot {
    uint8_t taken = 0;  // a bit per quarter
    KvTier tier = KvTier::full;
    bool closed = false;
    int32_t gap = -1;  // place in gaps_ of its tier; -1: not there
  };
  uint8_t bits(KvTier tier, int part) const {
    return uint8_t(((1 << kv_units(tier)) - 1) << part * kv_units(tier));
  }
  void set_gap(int slot, bool gap);

  std::vector<Slot> slots_;
  std::vector<int32_t> empty_;                       // a stack: the slot freed last is taken first
  std::array<std::vector<int32_t>, kKvTiers> gaps_;  // per tier: slots with room for one more
  std::array<int, kKvTiers> blocks_{}, opened_{};    // per tier: blocks, and slots that hold any
  int used_units_ = 0;
};

}  // namespace sluice
