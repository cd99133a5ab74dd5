// Which blocks of the key/value cache are in use, and by how many owners; and which of those that nobody owns
// still hold something worth finding again. Knows numbers only: the bytes behind a block belong to the device.
// Owned by the engine thread: no locks, and nothing is allocated after construction.
//
// A block is in one of three states:
//   empty   no owner, nothing in it that anybody would look for
//   used    one owner or more
//   cached  no owner, content kept (keep) until the block is needed for something else
// What can be had at once is empty and cached together: free().
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace sluice {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

// Content of one block to be copied into another: from, to.
using BlockCopy = std::pair<BlockId, BlockId>;

class BlockPool {
 public:
  // Who knows what kept blocks hold.
  class Keeper {
   public:
    // The block is about to be handed out for something else. May unkeep others.
    virtual void forget(BlockId block) = 0;

   protected:
    ~Keeper() = default;
  };

  explicit BlockPool(int blocks);
  void set_keeper(Keeper* keeper) { keeper_ = keeper; }

  // A block with one owner, or kNoBlock when all are in use. Of empty blocks the one freed last is handed out
  // first: its bytes are the likeliest to be in a cache, and blocks that were never needed are never touched
  // (resident memory follows use). Where none is empty, the cached block whose last owner left first, a hot one
  // only where all are hot.
  BlockId take();
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

  int total() const { return int(blocks_.size()); }
  int free() const { return int(empty_.size()) + cached(); }
  int used() const { return total() - free(); }
  int cached() const { return cold_.size + hot_.size; }
  int hot() const { return hot_.size; }
  int owners(BlockId block) const { return blocks_[checked(block)].owners; }
  bool kept(BlockId block) const { return blocks_[checked(block)].kept; }
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
    CHECK(block >= 0 && block < total(), "no such block");
    return size_t(block);
  }
  void append(List& list, BlockId block);
  void remove(BlockId block);

  std::vector<Block> blocks_;
  std::vector<BlockId> empty_;  // a stack; capacity for all
  List cold_, hot_;             // cached blocks, by when they lost their last owner
  Keeper* keeper_ = nullptr;
  uint64_t evicted_ = 0;
};

}  // namespace sluice
