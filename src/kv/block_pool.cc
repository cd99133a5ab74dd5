#include "kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "base/probes.h"

namespace sluice {

BlockPool::BlockPool(int slots, const KvTiering& tiering) : slots_(slots) {
  CHECK(slots >= 0);
  const int ids = slots * (kSlotUnits / tiering.smallest_units());
  if (tiering.on()) {
    places_ = std::make_unique<BlockPlaces>(slots, ids);
    counted_.resize(size_t(slots));
  }
  blocks_.resize(size_t(ids));
  empty_.reserve(size_t(ids));
  for (BlockId b = ids - 1; b >= 0; --b) empty_.push_back(b);
}

int BlockPool::free() const {
  if (!places_) return int(empty_.size()) + cached();
  return std::max(0, slots_ - places_->held_slots() - kHeldBackSlots);
}

PoolUse BlockPool::use() const {
  PoolUse use;
  if (places_) {
    const Placement& placement = places_->placement();
    use.owned = places_->owned_units() + places_->leaving_units();
    use.cached = placement.used_units() - use.owned;
    use.gaps = placement.wasted_units();
    for (int tier = 0; tier < kKvTiers; ++tier) use.blocks[size_t(tier)] = placement.blocks(KvTier(tier));
  } else {
    use.cached = cached() * kSlotUnits;
    use.owned = used() * kSlotUnits;
    use.blocks[size_t(KvTier::full)] = used() + cached();
  }
  use.free = total() * kSlotUnits - use.owned - use.cached - use.gaps;
  return use;
}

BlockId BlockPool::take(KvTier tier) {
  if (places_) {
    if (free() == 0) return kNoBlock;
    while (places_->placement().free_slots() <= kHeldBackSlots)
      CHECK(evict(), "a free slot holds cached blocks");
  } else if (empty_.empty() && !evict()) {
    return kNoBlock;
  }
  const BlockId id = empty_.back();
  empty_.pop_back();
  Block& block = blocks_[size_t(id)];
  CHECK(block.owners == 0 && !block.kept, "an empty block is in use");
  block.owners = 1;
  if (places_) {
    CHECK(places_->place(id, tier));
    places_->set_owned(id, true);
  }
  if (probe::kv_alloc_on()) probe::fire::kv_alloc(id, free());
  return id;
}

void BlockPool::become_empty(BlockId id) {
  if (places_) places_->remove(id);
  empty_.push_back(id);
}

bool BlockPool::convert(BlockId id, KvTier tier, std::vector<BlockMove>& moves) {
  CHECK(places_ && owners(id) > 0 && kv_units(tier) < units(id));
  // Two sequences that share it may both find it old enough, for different tiers.
  const auto goes_there = [&](const BlockMove& move) { return move.second == ref(id); };
  if (kv_tier(ref(id)) != KvTier::full && std::any_of(moves.begin(), moves.end(), goes_there)) return false;
  while (!places_->move(id, tier, moves))
    if (places_->held_slots() == total() || !evict()) return false;
  return true;
}

int BlockPool::close_gaps(int most, std::vector<BlockMove>& moves) {
  for (int i = 0; i < most && places_->closable_now() == 0 && places_->closable_slots() > 0; ++i)
    if (!evict()) break;
  return places_->close_gaps(most, moves);
}

void BlockPool::land(std::span<const BlockMove> moves) {
  for (const BlockMove& move : moves) places_->land(move);
}

int BlockPool::count_newly_held(BlockId id) {
  if (owners(id) > 0) return 0;
  if (!places_) return 1;
  return places_->slot_is_held(id) ? 0 : std::exchange(counted_[size_t(places_->slot(id))], count_) != count_;
}

void BlockPool::share(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.owners > 0 || block.kept, "sharing an empty block");
  if (block.owners++ > 0) return;
  remove(id);
  if (places_) places_->set_owned(id, true);
}

void BlockPool::drop(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.owners > 0, "freeing a free block");
  if (--block.owners > 0) return;
  if (places_) places_->set_owned(id, false);
  if (!block.kept) {
    become_empty(id);
    return;
  }
  block.is_hot = block.hits >= kHotHits;
  append(block.is_hot ? hot_ : cold_, id);
  if (keeper_) keeper_->left(id);
  if (hot_.size > ids() / kHotShare) {
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
  become_empty(id);
}

bool BlockPool::evict() {
  const BlockId oldest = cold_.size ? cold_.first : hot_.first;
  if (oldest == kNoBlock) return false;
  const size_t before = empty_.size();
  if (probe::kv_evict_on()) probe::fire::kv_evict(oldest);
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
