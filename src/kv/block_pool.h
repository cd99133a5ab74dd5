// Which blocks of the key/value cache are in use, and by how many owners. Knows numbers only: the bytes behind
// a block belong to the device. Owned by the engine thread: no locks, and nothing is allocated after
// construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace sluice {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

class BlockPool {
 public:
  explicit BlockPool(int blocks);

  // A block with one owner, or kNoBlock when all are in use. The block freed last is handed out first: its
  // bytes are the likeliest to be in a cache, and blocks that were never needed are never touched (resident
  // memory follows use).
  BlockId take();
  // One owner more of a block in use.
  void share(BlockId block);
  // One owner less; the last one frees the block.
  void drop(BlockId block);

  int total() const { return int(owners_.size()); }
  int free() const { return int(free_.size()); }
  int used() const { return total() - free(); }
  int owners(BlockId block) const { return owners_[checked(block)]; }

 private:
  size_t checked(BlockId block) const {
    CHECK(block >= 0 && block < total(), "no such block");
    return size_t(block);
  }
  std::vector<int32_t> owners_;  // [blocks]
  std::vector<BlockId> free_;    // a stack; capacity for all
};

}  // namespace sluice
