// Which blocks of the key/value cache are in use, and by how many owners; and which of those that nobody owns
// still hold something worth finding again. Knows numbers only: the bytes behind a block belong to the device.
// Owned by the engine thread: no locks, and nothing is allocated after construction.
//
// A block is in one of three states:
//   empty   no owner, nothing in it that anybody would look for
//   used    one owner or more
//   cached  no owner, content kept (keep) until the block is needed for something else
// What can be had at once is empty and cached together: free().
//
// A block is a name: tables, index and sharing know no more. Where its bytes lie is ref(). In a pool of one
// precision that is the slot of the same number. With tiers (kv/tiering.h) a block may be moved to a smaller
// place while it is used, so there are more names than slots, and all that is counted in blocks (total, free,
// used) means blocks in full precision, that is slots: a slot is free when nothing in it has an owner. One slot
// is held back, so that a conversion always finds a place to go to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/block_move.h"
#include "kv/block_places.h"
#include "kv/tiering.h"

namespace sluice {

// What the pool's memory is taken by, in quarters of a slot.
struct PoolUse {
  int owned = 0;  // blocks with owners, or being moved
  int cached = 0;
  int gaps = 0;  // in slots that blocks of a small tier take partly
  int free = 0;
  std::array<int, kKvTiers> blocks{};  // by tier, owned and cached

  // Of what blocks would take in full precision.
  double mean_share() const {
    int units = 0, all = 0;
    for (int tier = 0; tier < kKvTiers; ++tier)
      units += blocks[size_t(tier)] * kv_units(KvTier(tier)), all += blocks[size_t(tier)] * kSlotUnits;
    return all ? double(units) / all : 1;
  }
};

class BlockPool {
 public:
  // Who knows what kept blocks hold.
  class Keeper {
   public:
    // The block is about to be handed out for something else. May unkeep others.
    virtual void forget(BlockId block) = 0;
    // The last owner of a kept block has left: from now on it may be forgotten.
    virtual void left(BlockId block) {}

   protected:
    ~Keeper() = default;
  };

  explicit BlockPool(int slots, const KvTiering& tiering = {});
  void set_keeper(Keeper* keeper) { keeper_ = keeper; }

  // A block with one owner, or kNoBlock when all are in use. Of empty blocks the one freed last is handed out
  // first: its bytes are the likeliest to be in a cache, and blocks that were never needed are never touched
  // (resident memory follows use). Where none is empty, the cached block whose last owner left first, a hot one
  // only where all are hot. One in a small tier is for content that comes from elsewhere.
  BlockId take(KvTier tier = KvTier::full);
  // One owner more of a block that is used or cached.
  void share(BlockId block);
  // One owner less; the last one makes the block cached if it is kept, else empty.
  void drop(BlockId block);

  // What a used block holds from now on is worth keeping; it is not written to any more.
  void keep(BlockId block);
  // It is not, after all.
  void unkeep(BlockId block);
  // A sequence found what the block holds. With kHotHits of them the block is hot once it has no owner.
  void count_hit(BlockId block) { ++blocks_[checked(block)].hits; }
  // Gives up one cached block, as take does. False: there is none.
  bool evict();

  // Where a block that is not empty lies.
  KvRef ref(BlockId block) const {  // kNoKvRef of kNoBlock
    static_assert(kNoBlock == kNoKvRef);
    return places_ && block != kNoBlock ? places_->ref(block) : block;
  }
  int units(BlockId block) const { return kv_units(kv_tier(ref(block))); }
  bool tiered() const { return places_ != nullptr; }
  // Converts a used block that is whole and has landed, by a move that is appended for the coming step; cached
  // blocks give way if they must. False: not in this step, since there is no place or it has just been moved by
  // it. Nothing is taken between this and that step.
  bool convert(BlockId block, KvTier tier, std::vector<BlockMove>& moves);
  // Moves blocks of small tiers together so that slots become free, by at most `most` moves of the coming step;
  // none of this step's moves may go to such blocks. Cached ones give way if that is what it takes.
  int close_gaps(int most, std::vector<BlockMove>& moves);
  // The step with these moves has landed: the places they left are free.
  void land(std::span<const BlockMove> moves);
  // Slots that become free without anybody giving anything up: when what is being moved has landed, and by
  // close_gaps.
  int coming() const { return places_ ? places_->coming_slots() + places_->closable_slots() : 0; }
  // Slots that would not be free any more if all these blocks were owned; each call counts a further one,
  // begin_count starts anew.
  void begin_count() { ++count_; }
  int count_newly_held(BlockId block);

  int ids() const { return int(blocks_.size()); }
  int total() const { return slots_; }
  int free() const;
  int used() const { return places_ ? places_->held_slots() : total() - free(); }
  int cached() const { return cold_.size + hot_.size; }  // blocks, of whatever size
  int hot() const { return hot_.size; }
  int owners(BlockId block) const { return blocks_[checked(block)].owners; }
  bool kept(BlockId block) const { return blocks_[checked(block)].kept; }
  PoolUse use() const;
  // Blocks whose kept content was given up, so far.
  uint64_t evicted() const { return evicted_; }

  // The hot are at most 1 / kHotShare of the pool; beyond it those that were hot the longest are as good as
  // others again.
  static constexpr int kHotHits = 4, kHotShare = 2;

 private:
  struct Block {
    int32_t owners = 0;
    int32_t hits = 0;                             // since it was kept
    BlockId before = kNoBlock, after = kNoBlock;  // in a list, where it is cached
    bool kept = false;
    bool is_hot = false;  // cached: in which list
  };
  // Oldest first, linked through the blocks.
  struct List {
    BlockId first = kNoBlock, last = kNoBlock;
    int size = 0;
  };
  size_t checked(BlockId block) const {
    CHECK(block >= 0 && block < ids(), "no such block");
    return size_t(block);
  }
  void append(List& list, BlockId block);
  void remove(BlockId block);
  void become_empty(BlockId block);

  static constexpr int kHeldBackSlots = 1;  // with tiers

  const int slots_;
  std::unique_ptr<BlockPlaces> places_;  // null: one precision
  std::vector<Block> blocks_;
  std::vector<BlockId> empty_;  // a stack; capacity for all
  List cold_, hot_;             // cached blocks, by when they lost their last owner
  Keeper* keeper_ = nullptr;
  uint64_t evicted_ = 0;
  std::vector<uint64_t> counted_;  // [slots] with tiers: in which count
  uint64_t count_ = 0;
};

}  // namespace sluice
