#include "kv/block_table.h"

#include <algorithm>
#include <utility>

namespace sluice {

int KvLayout::peak_blocks(int length) const {
  int blocks = 0;
  for (int window : windows) {
    const int all = blocks_for(length);
    // Behind the oldest row in flight a window's worth stays; one block more for where it begins within a
    // block.
    const int kept = blocks_for(window + steps_in_flight * max_step_tokens) + 1;
    blocks += window == 0 ? all : std::min(all, kept);
  }
  return blocks;
}

BlockTable::BlockTable(const KvLayout& layout)
    : block_tokens_(layout.block_tokens),
      capacity_(layout.row_capacity()),
      windows_(layout.windows),
      first_(layout.windows.size(), 0),
      rows_(layout.windows.size() * size_t(layout.row_capacity()), kNoBlock) {
  CHECK(block_tokens_ > 0);
  sources_.reserve(layout.windows.size());
}

int BlockTable::missing(int length) const {
  const int wanted = (length + block_tokens_ - 1) / block_tokens_;
  CHECK(wanted <= capacity_, "a sequence outgrows its table");
  return wanted > entries_ ? (wanted - entries_) * int(windows_.size()) : 0;
}

bool BlockTable::grow(BlockPool& pool, int length) {
  const int taken = missing(length);
  if (taken > pool.free()) return false;
  const int wanted = entries_ + taken / std::max(1, int(windows_.size()));
  for (int g = 0; g < int(windows_.size()); ++g)
    for (int i = entries_; i < wanted; ++i) entries(g)[i] = pool.take();
  entries_ = wanted;
  held_ += taken;
  return true;
}

void BlockTable::drop_behind(BlockPool& pool, int next) {
  for (int g = 0; g < int(windows_.size()); ++g) {
    if (windows_[size_t(g)] == 0) continue;
    const int first_seen = std::max(0, next - windows_[size_t(g)] + 1);
    const int first_kept = std::min(first_seen / block_tokens_, entries_);
    for (int& i = first_[size_t(g)]; i < first_kept; ++i) {
      pool.drop(entries(g)[i]);
      entries(g)[i] = kNoBlock;
      --held_;
    }
  }
}

void BlockTable::clear(BlockPool& pool) {
  drop_sources(pool);
  for (int i = entries_; i-- > 0;) {
    for (int g = 0; g < int(windows_.size()); ++g) {
      if (i < first_[size_t(g)]) continue;
      pool.drop(entries(g)[i]);
      entries(g)[i] = kNoBlock;
      --held_;
    }
  }
  std::fill(first_.begin(), first_.end(), 0);
  CHECK(held_ == 0, "a table lost count of its blocks");
  entries_ = 0;
}

void BlockTable::open(int blocks) {
  CHECK(entries_ == 0 && blocks <= capacity_);
  entries_ = blocks;
  std::fill(first_.begin(), first_.end(), blocks);
}

void BlockTable::prepend(int group, BlockId block) {
  CHECK(first_[size_t(group)] > 0);
  entries(group)[--first_[size_t(group)]] = block;
  ++held_;
}

void BlockTable::replace(BlockPool& pool, int group, int index, BlockId block) {
  CHECK(index >= first_[size_t(group)] && index < entries_);
  pool.drop(std::exchange(entries(group)[index], block));
}

void BlockTable::drop_sources(BlockPool& pool) {
  for (BlockId source : sources_) pool.drop(source);
  sources_.clear();
}

int BlockTable::held_alone(const BlockPool& pool) const {
  int alone = 0;
  for (int g = 0; g < int(windows_.size()); ++g)
    for (int i = first_[size_t(g)]; i < entries_; ++i) alone += pool.owners(row(g)[size_t(i)]) == 1;
  return alone;
}

}  // namespace sluice
