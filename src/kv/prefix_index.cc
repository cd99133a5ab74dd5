#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice {

namespace {

uint64_t root_hash(const PrefixSalt& salt) { return salt[0] ^ std::rotl(salt[1], 32); }

}  // namespace

uint64_t chained_hash(uint64_t parent, std::span<const int32_t> tokens) {
  uint64_t h = parent;
  for (int32_t t : tokens) {
    h = (h ^ uint32_t(t)) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return h;
}

// In models where every group has a window a chain may be longer than what it has blocks for: room for one of
// those besides a node per block.
PrefixIndex::PrefixIndex(const KvLayout& layout, BlockPool& pool, PrefixHash hash)
    : pool_(pool),
      hash_(hash),
      block_tokens_(layout.block_tokens),
      windows_(layout.windows),
      run_(layout.windows.size()),
      evicted_(kPoolsRemembered * size_t(pool.ids())) {
  const size_t nodes = size_t(pool.ids()) + size_t(layout.row_capacity());
  nodes_.resize(nodes);
  tokens_.resize(nodes * size_t(block_tokens_));
  blocks_.resize(nodes * windows_.size(), kNoBlock);
  spare_.reserve(nodes);
  for (int n = int(nodes); n-- > 0;) spare_.push_back(n);
  node_of_.resize(size_t(pool.ids()), -1);
  slots_.resize(std::bit_ceil(2 * nodes + 1), -1);
  pool.set_keeper(this);
}

int PrefixIndex::first_seen(int group, int position) const {
  const int window = windows_[size_t(group)];
  return window == 0 ? 0 : std::max(0, position - window + 1) / block_tokens_;
}

uint64_t PrefixIndex::hash_of(int parent, const PrefixSalt& salt, std::span<const int32_t> tokens) const {
  return hash_(parent >= 0 ? nodes_[size_t(parent)].hash : root_hash(salt), tokens);
}

int PrefixIndex::lookup(int parent, const PrefixSalt& salt, std::span<const int32_t> wanted,
                        uint64_t hash) const {
  for (size_t at = size_t(hash) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const int n = slots_[at];
    if (n < 0) return -1;
    const Node& node = nodes_[size_t(n)];
    if (node.hash == hash && node.parent == parent && node.salt == salt &&
        std::ranges::equal(tokens(n), wanted))
      return n;
  }
}

// One walk down the chain. A depth will do if every windowed group has the blocks of the window before it
// (`run_`: how many a group has without a gap, up to here); the deepest such depth is the answer.
PrefixMatch PrefixIndex::find(std::span<const int32_t> ids, const PrefixSalt& salt, int most) {
  PrefixMatch match;
  std::fill(run_.begin(), run_.end(), 0);
  most = std::min(most, int(ids.size()));
  int node = -1;
  for (int depth = 1; depth * block_tokens_ <= most; ++depth) {
    const auto block_ids = ids.subspan(size_t(depth - 1) * size_t(block_tokens_), size_t(block_tokens_));
    node = lookup(node, salt, block_ids, hash_of(node, salt, block_ids));
    if (node < 0) break;
    bool will_do = true;
    for (int g = 0; g < groups(); ++g) {
      run_[size_t(g)] = block(node, g) == kNoBlock ? 0 : run_[size_t(g)] + 1;
      will_do &= run_[size_t(g)] >= depth - first_seen(g, depth * block_tokens_);
    }
    if (will_do) match = {.node = node, .blocks = depth, .tokens = depth * block_tokens_};
  }
  find_copy(ids, salt, most, match);
  return match;
}

int PrefixIndex::evicted_tokens(std::span<const int32_t> ids, const PrefixSalt& salt, int found,
                                int most) const {
  if (evicted_.empty()) return 0;
  uint64_t hash = root_hash(salt);
  int end = 0;
  for (; end + block_tokens_ <= std::min(most, int(ids.size())); end += block_tokens_) {
    hash = hash_(hash, ids.subspan(size_t(end), size_t(block_tokens_)));
    if (end + block_tokens_ > found && !evicted_.has(hash)) break;
  }
  return std::max(0, end - found);
}

void PrefixIndex::set_host(const HostTier* host) {
  host_ = host;
  left_.resize(size_t(pool_.ids()));
  in_left_.resize(size_t(pool_.ids()), 0);
}

void PrefixIndex::left(BlockId block) {
  if (!host_ || in_left_[size_t(block)]) return;
  in_left_[size_t(block)] = 1;
  left_[(left_first_ + left_count_++) % left_.size()] = block;
}

// Blocks that somebody has taken over again are left out: they come anew.
bool PrefixIndex::next_left(BlockId& block, BlockKey& key, int& group) {
  while (left_count_ > 0) {
    block = left_[left_first_];
    left_first_ = (left_first_ + 1) % left_.size();
    --left_count_;
    in_left_[size_t(block)] = 0;
    const int n = node_of_[size_t(block)];
    if (n < 0 || pool_.owners(block) > 0 || nodes_[size_t(n)].key == kNoBlockKey) continue;
    key = nodes_[size_t(n)].key;
    for (group = 0; this->block(n, group) != block;) ++group;
    return true;
  }
  return false;
}

// As find, where a group may have a block in the pool or outside. What has to come is counted once it is known
// which blocks are needed.
StoredMatch PrefixIndex::find_stored(std::span<const int32_t> ids, const PrefixSalt& salt,
                                     std::span<const BlockKey> keys, int most) {
  StoredMatch match;
  std::fill(run_.begin(), run_.end(), 0);
  most = std::min({most, int(ids.size()), int(keys.size()) * block_tokens_});
  int node = -1, last_node = -1, nodes = 0;
  for (int depth = 1; depth * block_tokens_ <= most; ++depth) {
    const auto block_ids = ids.subspan(size_t(depth - 1) * size_t(block_tokens_), size_t(block_tokens_));
    if (nodes == depth - 1) {
      node = lookup(node, salt, block_ids, hash_of(node, salt, block_ids));
      if (node >= 0) last_node = node, nodes = depth;
    }
    bool will_do = true, any = nodes == depth;
    for (int g = 0; g < groups(); ++g) {
      const bool here =
          (nodes == depth && block(node, g) != kNoBlock) || host_->find(keys[size_t(depth - 1)], g) >= 0;
      any |= here;
      run_[size_t(g)] = here ? run_[size_t(g)] + 1 : 0;
      will_do &= run_[size_t(g)] >= depth - first_seen(g, depth * block_tokens_);
    }
    if (!any) break;
    if (will_do)
      match = {.node = last_node, .node_blocks = nodes, .blocks = depth, .tokens = depth * block_tokens_};
  }
  count_stored(match, keys);
  return match;
}

void PrefixIndex::count_stored(StoredMatch& match, std::span<const BlockKey> keys) const {
  for (int index = match.blocks, n = match.node; index-- > 0;) {
    const bool known = index < match.node_blocks;
    bool from_host = false, from_disk = false;
    for (int g = 0; g < groups(); ++g) {
      if (index < first_seen(g, match.tokens) || (known && block(n, g) != kNoBlock)) continue;
      const int entry = host_->find(keys[size_t(index)], g);
      const bool host = host_->where(entry) == HostTier::Where::host;
      (host ? match.host_bytes : match.disk_bytes) += host_->bytes(entry);
      from_host |= host, from_disk |= !host;
    }
    match.disk_tokens += from_disk ? block_tokens_ : 0;
    match.host_tokens += from_host && !from_disk ? block_tokens_ : 0;
    if (known) n = nodes_[size_t(n)].parent;
  }
}

bool PrefixIndex::whole(int node) const {
  for (int g = 0; g < groups(); ++g)
    if (block(node, g) == kNoBlock) return false;
  return true;
}

// Behind the whole blocks: the child that goes on alike for the longest.
void PrefixIndex::find_copy(std::span<const int32_t> ids, const PrefixSalt& salt, int most,
                            PrefixMatch& match) const {
  const auto rest = ids.subspan(size_t(match.tokens), size_t(std::min(block_tokens_, most - match.tokens)));
  if (int(rest.size()) < least_copied()) return;
  int n = match.node < 0 ? newest_root_ : nodes_[size_t(match.node)].child;
  for (int seen = 0; n >= 0 && seen < kSiblingsSeen; n = nodes_[size_t(n)].older, ++seen) {
    if (nodes_[size_t(n)].salt != salt || !whole(n)) continue;
    const auto theirs = tokens(n);
    const int alike = int(std::mismatch(rest.begin(), rest.end(), theirs.begin()).first - rest.begin());
    if (alike >= least_copied() && alike > match.copied) match.copied = alike, match.copy_node = n;
  }
  match.tokens += match.copied;
}

int PrefixIndex::used_by_others(const PrefixMatch& match) const {
  int units = 0;
  for (int n = match.node; n >= 0; n = nodes_[size_t(n)].parent)
    for (int g = 0; g < groups(); ++g)
      if (windows_[size_t(g)] == 0 && pool_.owners(block(n, g)) > 0) units += pool_.units(block(n, g));
  return units / kSlotUnits;
}

int PrefixIndex::newly_held(const PrefixMatch& match) const {
  int slots = 0, index = match.blocks;
  pool_.begin_count();
  const auto count = [&](int node, int group) {
    if (block(node, group) != kNoBlock) slots += pool_.count_newly_held(block(node, group));
  };
  for (int n = match.node; n >= 0; n = nodes_[size_t(n)].parent) {
    --index;
    for (int g = 0; g < groups(); ++g)
      if (index >= first_seen(g, match.tokens)) count(n, g);
  }
  if (match.copied > 0)
    for (int g = 0; g < groups(); ++g) count(match.copy_node, g);
  return slots;
}

void PrefixIndex::take_over(BlockTable& table, const PrefixMatch& match, std::vector<BlockMove>& copies) {
  CHECK(table.cursor.node < 0 && !table.cursor.stopped);
  table.open(match.blocks);
  int index = match.blocks;
  for (int n = match.node; n >= 0; n = nodes_[size_t(n)].parent) {
    --index;
    for (int g = 0; g < groups(); ++g) {
      if (index < first_seen(g, match.tokens)) continue;
      pool_.share(block(n, g));
      pool_.count_hit(block(n, g));
      table.prepend(g, block(n, g));
    }
  }
  CHECK(index == 0);
  table.cursor.blocks = match.blocks;
  if (match.node >= 0) move_cursor(table.cursor, match.node);
  if (match.copied == 0) return;
  for (int g = 0; g < groups(); ++g) {
    pool_.share(block(match.copy_node, g));
    table.hold_source(block(match.copy_node, g));
  }
  CHECK(table.grow(pool_, match.tokens), "room for a copied block");
  for (int g = 0; g < groups(); ++g) {
    CHECK(copies.size() < copies.capacity());
    copies.emplace_back(pool_.ref(block(match.copy_node, g)), pool_.ref(table.row(g)[size_t(match.blocks)]));
  }
}

// Shared first, all of it: what is taken then may push out cached blocks.
int PrefixIndex::take_over(BlockTable& table, const StoredMatch& match, HostTier& host,
                           std::span<const BlockKey> keys, std::vector<PendingBlock>& pending) {
  CHECK(table.cursor.node < 0 && !table.cursor.stopped);
  const auto in_pool = [&](int n, int index, int g) {
    return index < match.node_blocks ? block(n, g) : kNoBlock;
  };
  const auto walk = [&](auto&& visit) {
    for (int index = match.blocks, n = match.node; index-- > 0;) {
      for (int g = 0; g < groups(); ++g)
        if (index >= first_seen(g, match.tokens)) visit(n, index, g, in_pool(n, index, g));
      if (index < match.node_blocks) n = nodes_[size_t(n)].parent;
    }
  };
  if (match.node >= 0) move_cursor(table.cursor, match.node);  // so that nothing of the chain goes meanwhile
  int whole = match.node_blocks;                               // from the first on, that were all in the pool
  walk([&](int, int index, int g, BlockId known) {
    if (known == kNoBlock) {
      const int entry = host.find(keys[size_t(index)], g);
      CHECK(entry >= 0, "it was found just now");
      host.hold(entry);
      host.touch(entry);
      whole = std::min(whole, index);
      return;
    }
    pool_.share(known);
    pool_.count_hit(known);
  });
  table.open(match.blocks);
  walk([&](int, int index, int g, BlockId known) {
    if (known == kNoBlock) {
      const int entry = host.find(keys[size_t(index)], g);
      known = pool_.take(host.tier(entry));
      CHECK(known != kNoBlock && pending.size() < pending.capacity(), "room for what comes");
      pending.push_back({entry, known});
    }
    table.prepend(g, known);
  });
  int n = match.node;
  for (int index = match.node_blocks; index > whole; --index) n = nodes_[size_t(n)].parent;
  table.cursor.blocks = whole;
  if (match.node < 0 || n == match.node) return whole;
  if (n >= 0)
    move_cursor(table.cursor, n);
  else
    --nodes_[size_t(std::exchange(table.cursor.node, -1))].cursors;
  remove_if_unused(match.node);
  return whole;
}

void PrefixIndex::enter(BlockTable& table, std::span<const int32_t> ids, const PrefixSalt& salt,
                        std::span<const BlockKey> keys) {
  table.drop_sources(pool_);
  PrefixCursor& cursor = table.cursor;
  while (!cursor.stopped && (cursor.blocks + 1) * block_tokens_ <= int(ids.size())) {
    const auto block_ids = ids.subspan(size_t(cursor.blocks) * size_t(block_tokens_), size_t(block_tokens_));
    const uint64_t hash = hash_of(cursor.node, salt, block_ids);
    int node = lookup(cursor.node, salt, block_ids, hash);
    if (node < 0) node = make(cursor.node, salt, block_ids, hash);
    if (node < 0) {
      cursor.stopped = true;
      return;
    }
    if (size_t(cursor.blocks) < keys.size()) nodes_[size_t(node)].key = keys[size_t(cursor.blocks)];
    adopt(table, cursor.blocks, node);
    move_cursor(cursor, node);
    ++cursor.blocks;
  }
}

// The table's blocks at `index` hold what the node stands for. What came from outside has none behind a window.
void PrefixIndex::adopt(BlockTable& table, int index, int node) {
  for (int g = 0; g < groups(); ++g) {
    const BlockId mine = table.row(g)[size_t(index)], known = block(node, g);
    if (mine == kNoBlock) {
      CHECK(windows_[size_t(g)] > 0, "a chain would have a hole");
      continue;
    }
    if (known == kNoBlock) {
      set_block(node, g, mine);
      pool_.keep(mine);
    } else if (known != mine) {
      pool_.share(known);
      table.replace(pool_, g, index, known);
    }
  }
}

void PrefixIndex::leave(BlockTable& table) {
  if (table.cursor.node >= 0) {
    --nodes_[size_t(table.cursor.node)].cursors;
    remove_if_unused(table.cursor.node);
  }
  table.cursor = {};
}

void PrefixIndex::clear() {
  for (const Node& node : nodes_) CHECK(node.cursors == 0, "a sequence is in the index");
  for (BlockId b = 0; b < pool_.ids(); ++b) {
    if (node_of_[size_t(b)] < 0) continue;
    node_of_[size_t(b)] = -1;
    pool_.unkeep(b);
  }
  std::fill(nodes_.begin(), nodes_.end(), Node{});
  std::fill(blocks_.begin(), blocks_.end(), kNoBlock);
  std::fill(slots_.begin(), slots_.end(), -1);
  spare_.clear();
  for (int n = int(nodes_.size()); n-- > 0;) spare_.push_back(n);
  newest_root_ = -1;
}

// Of a group that keeps all: the node goes, and its blocks of other groups with it, which nobody can find any
// more and nobody owns (who owns one of them owns this one). Of a windowed group: a gap.
void PrefixIndex::forget(BlockId forgotten) {
  const int n = std::exchange(node_of_[size_t(forgotten)], -1);
  CHECK(n >= 0);
  int group = 0;
  while (block(n, group) != forgotten) ++group;
  block(n, group) = kNoBlock;
  if (windows_[size_t(group)] > 0) {
    remove_if_unused(n);
    return;
  }
  CHECK(nodes_[size_t(n)].children == 0, "a chain would have a hole");
  for (int g = 0; g < groups(); ++g) {
    const BlockId other = std::exchange(block(n, g), kNoBlock);
    if (other == kNoBlock) continue;
    CHECK(pool_.owners(other) == 0);
    node_of_[size_t(other)] = -1;
    pool_.unkeep(other);
  }
  remove_if_unused(n);
}

int PrefixIndex::make(int parent, const PrefixSalt& salt, std::span<const int32_t> wanted, uint64_t hash) {
  // Only chains of windowed groups, whose nodes may be without blocks, run out of nodes before the pool does.
  constexpr int kTries = 64;
  for (int i = 0; spare_.empty() && i < kTries; ++i)
    if (!pool_.evict()) break;
  if (spare_.empty()) return -1;
  const int n = spare_.back();
  spare_.pop_back();
  Node& node = nodes_[size_t(n)];
  int& newest = parent < 0 ? newest_root_ : nodes_[size_t(parent)].child;
  node = {.hash = hash, .salt = salt, .parent = parent, .older = newest, .live = true};
  if (newest >= 0) nodes_[size_t(newest)].younger = n;
  newest = n;
  if (parent >= 0) ++nodes_[size_t(parent)].children;
  std::copy(wanted.begin(), wanted.end(), tokens_.begin() + ptrdiff_t(n) * block_tokens_);
  table_insert(n);
  return n;
}

void PrefixIndex::set_block(int node, int group, BlockId id) {
  block(node, group) = id;
  node_of_[size_t(id)] = node;
}

void PrefixIndex::move_cursor(PrefixCursor& cursor, int node) {
  ++nodes_[size_t(node)].cursors;
  const int before = std::exchange(cursor.node, node);
  if (before >= 0) --nodes_[size_t(before)].cursors;
}

void PrefixIndex::remove_if_unused(int n) {
  while (n >= 0) {
    const Node& node = nodes_[size_t(n)];
    if (node.children > 0 || node.cursors > 0) return;
    for (int g = 0; g < groups(); ++g)
      if (block(n, g) != kNoBlock) return;
    const int parent = node.parent;
    remove(n);
    n = parent;
  }
}

void PrefixIndex::remove(int n) {
  table_erase(n);
  Node& node = nodes_[size_t(n)];
  evicted_.add(node.hash);
  int& newest = node.parent < 0 ? newest_root_ : nodes_[size_t(node.parent)].child;
  (node.younger >= 0 ? nodes_[size_t(node.younger)].older : newest) = node.older;
  if (node.older >= 0) nodes_[size_t(node.older)].younger = node.younger;
  if (node.parent >= 0) --nodes_[size_t(node.parent)].children;
  node = {};
  spare_.push_back(n);
}

void PrefixIndex::table_insert(int n) {
  const size_t mask = slots_.size() - 1;
  size_t at = size_t(nodes_[size_t(n)].hash) & mask;
  while (slots_[at] >= 0) at = (at + 1) & mask;
  slots_[at] = n;
}

// Without tombstones: what stands behind the gap and would be looked for in it moves up.
void PrefixIndex::table_erase(int n) {
  const size_t mask = slots_.size() - 1;
  size_t gap = size_t(nodes_[size_t(n)].hash) & mask;
  while (slots_[gap] != n) gap = (gap + 1) & mask;
  for (size_t at = (gap + 1) & mask; slots_[at] >= 0; at = (at + 1) & mask) {
    const size_t home = size_t(nodes_[size_t(slots_[at])].hash) & mask;
    if (((at - home) & mask) < ((at - gap) & mask)) continue;
    slots_[gap] = slots_[at];
    gap = at;
  }
  slots_[gap] = -1;
}

void PrefixIndex::check() const {
  std::vector<int> children(nodes_.size(), 0);
  int live = 0, entered = 0;
  for (int n = 0; n < int(nodes_.size()); ++n) {
    const Node& node = nodes_[size_t(n)];
    if (!node.live) continue;
    ++live;
    CHECK(lookup(node.parent, node.salt, tokens(n), node.hash) == n, "a node is not found, or twice there");
    if (node.parent >= 0) {
      CHECK(nodes_[size_t(node.parent)].live && nodes_[size_t(node.parent)].salt == node.salt);
      ++children[size_t(node.parent)];
    }
    bool needed = node.children > 0 || node.cursors > 0;
    for (int g = 0; g < groups(); ++g) {
      const BlockId b = block(n, g);
      CHECK(b != kNoBlock || windows_[size_t(g)] > 0, "a chain has a hole");
      if (b == kNoBlock) continue;
      needed = true;
      ++entered;
      CHECK(pool_.kept(b) && node_of_[size_t(b)] == n, "a block of the index is not kept");
    }
    CHECK(needed, "a node without purpose");
  }
  for (int n = 0; n < int(nodes_.size()); ++n) CHECK(children[size_t(n)] == nodes_[size_t(n)].children);
  CHECK(live == nodes());
  int kept = 0;
  for (BlockId b = 0; b < pool_.ids(); ++b) kept += pool_.kept(b);
  CHECK(kept == entered, "a block is kept that nobody can find");
}

}  // namespace sluice
