// Where the blocks of a pool with tiers lie, by id, and what of its slots is in use: a slot can be had when no
// block in it has an owner and none is just leaving it. Blocks go from place to place by moves that a step
// makes before its ops (tensor/backend.h, move_blocks); the place that one leaves stays taken until that step
// has landed, so within a list nothing depends on anything.
//
// Part of BlockPool. Owned by the engine thread; nothing is allocated after construction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kv/block_move.h"
#include "kv/placement.h"

namespace sluice {

class BlockPlaces {
 public:
  BlockPlaces(int slots, int ids);

  KvRef ref(BlockId id) const { return refs_[size_t(id)]; }
  // A place for a block that has none. False: there is none.
  bool place(BlockId id, KvTier tier);
  void remove(BlockId id);
  // Its first owner came, or its last one left.
  void set_owned(BlockId id, bool owned);

  // Another place for a block. False: there is none.
  bool move(BlockId id, KvTier tier, std::vector<BlockMove>& moves);
  // The step that made the move has landed.
  void land(const BlockMove& move);

  // Moves the blocks of slots that are partly taken into each other's gaps, at most `most` of them. The slots
  // that become free are so when the step has landed. Returns the number of moves.
  int close_gaps(int most, std::vector<BlockMove>& moves);

  const Placement& placement() const { return placement_; }
  int slot(BlockId id) const { return slot_of(ref(id)); }
  bool slot_is_held(BlockId id) const {
    const Slot& s = slots_[size_t(slot(id))];
    return s.owned + s.leaving > 0;
  }
  int held_slots() const { return held_slots_; }    // with a block that is owned or leaving
  int owned_units() const { return owned_units_; }  // quarters of a slot
  int leaving_units() const { return leaving_units_; }
  int coming_slots() const { return coming_slots_; }  // of them, those with nothing but blocks that are leaving
  // Slots that would be free if all blocks with owners were moved together, once cached ones are gone.
  int closable_slots() const;
  // Of those, what gaps that are there now suffice for.
  int closable_now() const;

 private:
  struct Slot {
    uint8_t owned = 0, leaving = 0;  // blocks
  };
  static int slot_of(KvRef ref) { return int(kv_first_unit(ref) / kSlotUnits); }
  void count(KvRef ref, int owned, int leaving);
  int emptiest(KvTier tier, size_t moved_from, const std::vector<BlockMove>& moves) const;

  Placement placement_;
  std::vector<KvRef> refs_;        // [ids]
  std::vector<BlockId> block_at_;  // [slots * kSlotUnits] by a place's first unit; kNoBlock: none, or leaving
  std::vector<uint8_t> owned_;     // [ids]
  std::vector<Slot> slots_;
  int held_slots_ = 0, coming_slots_ = 0, owned_units_ = 0, leaving_units_ = 0;
  std::array<int, kKvTiers> owned_blocks_{}, owned_slots_of_{};
};

}  // namespace sluice
