#include "kv/block_pool.h"

namespace sluice {

BlockPool::BlockPool(int blocks) {
  CHECK(blocks >= 0);
  owners_.assign(size_t(blocks), 0);
  free_.reserve(size_t(blocks));
  for (BlockId b = blocks - 1; b >= 0; --b) free_.push_back(b);
}

BlockId BlockPool::take() {
  if (free_.empty()) return kNoBlock;
  const BlockId block = free_.back();
  free_.pop_back();
  CHECK(owners_[size_t(block)] == 0, "a free block has an owner");
  owners_[size_t(block)] = 1;
  return block;
}

void BlockPool::share(BlockId block) {
  int32_t& owners = owners_[checked(block)];
  CHECK(owners > 0, "sharing a free block");
  ++owners;
}

void BlockPool::drop(BlockId block) {
  int32_t& owners = owners_[checked(block)];
  CHECK(owners > 0, "freeing a free block");
  if (--owners == 0) free_.push_back(block);
}

}  // namespace sluice
