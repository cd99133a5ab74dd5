#include "kv/block_table.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

// A sequence's first tokens are attended to by all that follow, so what rounding loses of them is lost
// everywhere: without this SmolLM2 in int4 has a perplexity 2.5 % higher, with it 0.8 %; Gemma 3 in int8 0.57
// and 0.27 % (docs/kv.md). They stay in full.
constexpr int kFirstBlocks = 1;

}  // namespace

int KvLayout::peak_blocks(int length) const {
  // Being taken, in flight, waiting for a plan to convert them, and leaving: a step's worth each.
  constexpr int kPassing = 4, kSpareSlots = 4;  // the one held back, and a gap in each small tier
  return slots_of(length, kPassing * max_step_tokens) + (tiering.on() ? kSpareSlots : 0);
}

int KvLayout::settled_blocks(int length) const { return slots_of(length, 0); }

int KvLayout::slots_of(int length, int unconverted_tokens) const {
  if (whole_context) return groups() * row_capacity();
  int units = 0;
  for (const int window : windows) {
    // Behind the oldest row in flight a window's worth stays; one block more for where it begins within a
    // block.
    const int all = blocks_for(length), kept = blocks_for(window + steps_in_flight * max_step_tokens) + 1;
    const int blocks = window == 0 ? all : std::min(all, kept);
    int younger = 0, per_block = kSlotUnits;
    for (int s = 0; s < tiering.count; ++s) {
      const KvTiering::Stage& stage = tiering.stages[size_t(s)];
      const int before = younger;
      younger = std::min(blocks, blocks_for(stage.age_tokens + unconverted_tokens) + 1);
      units += (younger - before) * per_block;
      per_block = kv_units(stage.tier);
    }
    units += (blocks - younger) * per_block;
    units += std::min(kFirstBlocks, blocks - younger) * (kSlotUnits - per_block);
  }
  return (units + kSlotUnits - 1) / kSlotUnits;
}

BlockTable::BlockTable(const KvLayout& layout)
    : block_tokens_(layout.block_tokens),
      capacity_(layout.row_capacity()),
      whole_context_(layout.whole_context),
      tiering_(layout.tiering),
      converted_(layout.windows.size() * 2, 0),
      windows_(layout.windows),
      first_(layout.windows.size(), 0),
      rows_(layout.windows.size() * size_t(layout.row_capacity()), kNoBlock) {
  CHECK(block_tokens_ > 0);
  sources_.reserve(layout.windows.size());
}

int BlockTable::missing(int length) const {
  const int wanted = whole_context_ ? capacity_ : (length + block_tokens_ - 1) / block_tokens_;
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
  if (whole_context_) return;
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

// The later stage first: a block that both wait for goes straight there.
bool BlockTable::convert(BlockPool& pool, const KvTiering& tiering, int landed, std::vector<BlockMove>& moves,
                         int most) {
  const size_t before = moves.size();
  for (int g = 0; g < int(windows_.size()); ++g) {
    for (int s = tiering.count; s-- > 0;) {
      const KvTiering::Stage& stage = tiering.stages[size_t(s)];
      const int old = std::max(0, landed - stage.age_tokens) / block_tokens_;
      int& next = converted(g, s);
      next = std::max({next, first_[size_t(g)], kFirstBlocks});
      for (; next < std::min(old, entries_); ++next) {
        const BlockId id = entries(g)[next];
        if (pool.units(id) <= kv_units(stage.tier)) continue;
        if (int(moves.size() - before) == most || !pool.convert(id, stage.tier, moves)) return false;
      }
    }
  }
  return true;
}

int BlockTable::held_slots() const {
  if (!tiering_.on()) return held_;
  int units = 0;
  for (int g = 0; g < int(windows_.size()); ++g) {
    int end = entries_, per_block = kSlotUnits;
    for (int s = 0; s < tiering_.count; ++s) {
      const int begin = std::clamp(converted(g, s), first_[size_t(g)], end);
      units += (end - begin) * per_block;
      per_block = kv_units(tiering_.stages[size_t(s)].tier);
      end = begin;
    }
    units += (end - first_[size_t(g)]) * per_block;
  }
  return (units + kSlotUnits - 1) / kSlotUnits;
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
  std::fill(converted_.begin(), converted_.end(), 0);
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
  int units = 0;
  for (int g = 0; g < int(windows_.size()); ++g) {
    for (int i = first_[size_t(g)]; i < entries_; ++i) {
      const BlockId id = row(g)[size_t(i)];
      if (pool.owners(id) == 1) units += pool.units(id);
    }
  }
  return units / kSlotUnits;
}

}  // namespace sluice
