// Where the keys and values of one sequence lie: one row of block ids per layer group. Block i of a row holds
// positions [i * block_tokens, (i + 1) * block_tokens). Rows grow when a token needs it and not before; rows of
// windowed groups lose the blocks behind their window while the sequence runs (entry kNoBlock). With tiers,
// blocks of a row that have become old are converted, the oldest first.
//
// Owned by the engine thread. Rows are sized at construction; nothing is allocated later.
#pragma once

#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace sluice {

// How sequences are laid out in blocks. Plain numbers: the model's layer groups and the engine's limits.
struct KvLayout {
  int block_tokens = 16;
  std::vector<int> windows;  // per layer group: tokens that a row sees, itself included; 0: all
  int max_length = 0;        // tokens a sequence may span
  int max_step_tokens = 0;   // tokens of one sequence in one step, at most
  int steps_in_flight = 2;   // steps whose rows may still read behind what is being planned
  KvTiering tiering = {};
  // A sequence takes blocks for max_length tokens in every group when it begins, and keeps them: what paged
  // allocation is there to avoid, as a mode, to measure it.
  bool whole_context = false;

  int groups() const { return int(windows.size()); }
  int blocks_for(int tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  int row_capacity() const { return blocks_for(max_length); }
  // Blocks that a sequence of this length may hold at once, over all groups, whatever the steps that led to it.
  // With tiers in slots (block_pool.h), those that its conversions pass through included.
  int peak_blocks(int length) const;
  // The same once everything that is old enough has been converted: what it comes to hold beside others, who
  // share the slots that conversions pass through.
  int settled_blocks(int length) const;
  // What every sequence that runs is promised beyond its known tokens: a block per group.
  int spare_blocks() const { return whole_context ? 0 : groups(); }
  // Conversions that a step may make: twice what a step of one sequence can complete, in each stage.
  int most_moves() const { return tiering.count * groups() * 2 * (blocks_for(max_step_tokens) + 4); }

 private:
  int slots_of(int length, int unconverted_tokens) const;
};

// How far a sequence's blocks are in the prefix index; the index alone writes it.
struct PrefixCursor {
  int node = -1;         // of its last block that is in the index; -1: none yet
  int blocks = 0;        // from the first on, that are
  bool stopped = false;  // the index had no room: nothing further of it is kept
};

class BlockTable {
 public:
  explicit BlockTable(const KvLayout& layout);

  // Blocks to take so that positions [0, length) have a place.
  int missing(int length) const;
  // Takes them. False, and nothing taken, when the pool is short.
  bool grow(BlockPool& pool, int length);
  // Frees, in windowed groups, the blocks that no row at position `next` or later sees.
  void drop_behind(BlockPool& pool, int next);
  // Converts blocks that are old enough, at most `most` of them, with `landed` tokens landed. False: that, or
  // the lack of a place, kept some from it.
  bool convert(BlockPool& pool, const KvTiering& tiering, int landed, std::vector<BlockMove>& moves, int most);
  // Frees all: a block before the one that precedes it, so that of a prefix the end is the longest without an
  // owner.
  void clear(BlockPool& pool);

  // What the prefix index does with an empty table: rows of `blocks` entries, without a block yet; then, from
  // the last entry on backwards, blocks that the caller has shared.
  void open(int blocks);
  void prepend(int group, BlockId block);
  // Another block with the same content, which the caller has shared, in place of this one.
  void replace(BlockPool& pool, int group, int index, BlockId block);
  // A block that the caller has shared, and whose content is being copied into this table's: held until then.
  void hold_source(BlockId block) { sources_.push_back(block); }
  void drop_sources(BlockPool& pool);
  std::span<const BlockId> sources() const { return sources_; }

  PrefixCursor cursor;

  // [row_blocks()] ids of a group's blocks; kNoBlock behind the window.
  std::span<const BlockId> row(int group) const {
    return {rows_.data() + size_t(group) * size_t(capacity_), size_t(entries_)};
  }
  int row_blocks() const { return entries_; }
  int held() const { return held_; }
  // In slots, rounded up; what others have converted already counts as if they had not.
  int held_slots() const;
  // Of those, what nobody else holds: what clear would make free, give or take gaps.
  int held_alone(const BlockPool& pool) const;

 private:
  BlockId* entries(int group) { return rows_.data() + size_t(group) * size_t(capacity_); }
  int& converted(int group, int stage) { return converted_[size_t(group) * 2 + size_t(stage)]; }
  int converted(int group, int stage) const { return converted_[size_t(group) * 2 + size_t(stage)]; }

  int block_tokens_;
  int capacity_;  // entries per row at most
  bool whole_context_;
  KvTiering tiering_;
  std::vector<int> converted_;    // [groups, 2] per stage: the first entry that has not been through it
  std::vector<int> windows_;      // [groups]
  std::vector<int> first_;        // [groups] first entry that is still held
  std::vector<BlockId> rows_;     // [groups, capacity]
  std::vector<BlockId> sources_;  // capacity for one per group
  int entries_ = 0;               // per row; the same in every group
  int held_ = 0;
};

}  // namespace sluice
