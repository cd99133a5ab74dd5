#include "kv/block_pool.h"

namespace sluice {

BlockPool::BlockPool(int blocks) {
  CHECK(blocks >= 0);
  blocks_.resize(size_t(blocks));
  empty_.reserve(size_t(blocks));
  for (BlockId b = blocks - 1; b >= 0; --b) empty_.push_back(b);
}

BlockId BlockPool::take() {
  if (empty_.empty() && !evict()) return kNoBlock;
  const BlockId id = empty_.back();
  empty_.pop_back();
  Block& block = blocks_[size_t(id)];
  CHECK(block.owners == 0 && !block.kept, "an empty block is in use");
  block.owners = 1;
  return id;
}

void BlockPool::share(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.owners > 0 || block.kept, "sharing an empty block");
  if (block.owners++ == 0) remove(id);
}

void BlockPool::drop(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.owners > 0, "freeing a free block");
  if (--block.owners > 0) return;
  if (!block.kept) {
    empty_.push_back(id);
    return;
  }
  block.is_hot = block.hits >= kHotHits;
  append(block.is_hot ? hot_ : cold_, id);
  if (hot_.size > total() / kHotShare) {
    const BlockId oldest = hot_.first;
    remove(oldest);
    blocks_[size_t(oldest)].is_hot = false;
    append(cold_, oldest);
  }
}

void BlockPool::keep(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.owners > 0 && !block.kept, "only a used block begins to be kept");
  block.kept = true;
  block.hits = 0;
}

void BlockPool::unkeep(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.kept);
  block.kept = false;
  if (block.owners > 0) return;
  remove(id);
  empty_.push_back(id);
}

bool BlockPool::evict() {
  const BlockId oldest = cold_.size ? cold_.first : hot_.first;
  if (oldest == kNoBlock) return false;
  const size_t before = empty_.size();
  keeper_->forget(oldest);
  unkeep(oldest);
  evicted_ += empty_.size() - before;
  return true;
}

void BlockPool::append(List& list, BlockId id) {
  Block& block = blocks_[size_t(id)];
  block.before = list.last;
  block.after = kNoBlock;
  (list.last == kNoBlock ? list.first : blocks_[size_t(list.last)].after) = id;
  list.last = id;
  ++list.size;
}

void BlockPool::remove(BlockId id) {
  const Block& block = blocks_[size_t(id)];
  List& list = block.is_hot ? hot_ : cold_;
  (block.before == kNoBlock ? list.first : blocks_[size_t(block.before)].after) = block.after;
  (block.after == kNoBlock ? list.last : blocks_[size_t(block.after)].before) = block.before;
  --list.size;
}

}  // namespace sluice
