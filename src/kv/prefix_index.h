// What the blocks of the cache hold, so that a sequence which begins as an earlier one did takes over its
// blocks instead of computing them again.
//
// A tree of nodes. A node stands for one whole block of tokens behind those of its parent, under a salt; it
// names one block per layer group that holds their keys and values. Nodes are found by a hash chained over
// parent hash and tokens (as vLLM and SGLang do); whether the node found is the right one, its parent and its
// tokens decide, so a collision costs a comparison and never an answer.
//
// Only whole blocks whose tokens have been computed and are known enter the index, and blocks in it are never
// written again: sharing needs no lock and no copy. Where a new sequence parts from an old one within a block,
// that block's content is copied (BlockMove) and written behind the common part.
//
// What an entry is worth is for the pool to say: see BlockPool. For groups that see everything, whoever owns a
// node's block owns those of all its ancestors, and a table's blocks are dropped last first; so the oldest
// cached block is always that of a leaf, and a chain never has a hole. In windowed groups blocks may be given
// up anywhere: a prefix is found there if the window before its end is whole.
//
// Owned by the engine thread. Nothing is allocated after construction.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_key.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/host_tier.h"
#include "kv/recent_hashes.h"

namespace sluice {

// Of a block: its parent's hash (a salt's, at the root) and its tokens.
using PrefixHash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);
uint64_t chained_hash(uint64_t parent, std::span<const int32_t> tokens);

struct PrefixMatch {
  int node = -1;       // of the last whole block found; -1: none
  int blocks = 0;      // whole blocks
  int copy_node = -1;  // whose first tokens come next; -1: none
  int copied = 0;      // how many of them
  int tokens = 0;      // all together
};

// The same where blocks that are not in the pool are had from outside it (HostTier).
struct StoredMatch {
  int node = -1;        // of the last whole block that the index knows; -1: none
  int node_blocks = 0;  // blocks down to it
  int blocks = 0;       // whole blocks, those from outside included
  int tokens = 0;
  size_t host_bytes = 0, disk_bytes = 0;  // to be copied into the pool
  int host_tokens = 0, disk_tokens = 0;   // of the blocks with any such bytes
};

// A block of a table whose content is yet to come from an entry of HostTier, which is held.
struct PendingBlock {
  int entry = -1;
  BlockId block = kNoBlock;
};

class PrefixIndex final : public BlockPool::Keeper {
 public:
  PrefixIndex(const KvLayout& layout, BlockPool& pool, PrefixHash hash = chained_hash);

  // Blocks are to be offered to the host tier (next_left), and looked for there.
  void set_host(const HostTier* host);

  // The longest prefix of `ids`, at most `most` tokens, that can be taken over. Valid until the pool or the
  // index changes.
  PrefixMatch find(std::span<const int32_t> ids, const PrefixSalt& salt, int most);
  // The same, in whole blocks, with what the host tier has. `keys`: of the whole blocks of `ids`.
  StoredMatch find_stored(std::span<const int32_t> ids, const PrefixSalt& salt, std::span<const BlockKey> keys,
                          int most);
  // Of the first `most` tokens, behind the `found` ones: those of whole blocks that had been in the index
  // without a gap, and gave way not long ago. Of a count, not an answer: by hashes alone.
  int evicted_tokens(std::span<const int32_t> ids, const PrefixSalt& salt, int found, int most) const;
  // Of the blocks that take_over would share, those that others use already, in groups that keep all; in slots.
  int used_by_others(const PrefixMatch& match) const;
  // Slots that are free and would not be after take_over, those of copies left out.
  int newly_held(const PrefixMatch& match) const;

  // Puts what was found into an empty table. `copies` gets what is to be copied before the table is read; the
  // pool must have a free block per group for it.
  void take_over(BlockTable& table, const PrefixMatch& match, std::vector<BlockMove>& copies);
  // The same of a match with blocks from outside: those get a block of their own, and a line in `pending`; the
  // pool must have room for them. Until their content has come, the table counts in the index as far as its
  // blocks were in the pool without a gap: returns so many.
  int take_over(BlockTable& table, const StoredMatch& match, HostTier& host, std::span<const BlockKey> keys,
                std::vector<PendingBlock>& pending);
  // Enters the whole blocks of `ids`, all of which have been computed into the table. Where the index has a
  // block of the same content already, the table gets that one and its own is freed: steps in flight may still
  // read the old one, and run before any that writes to it.
  // `keys`: their names, if they are to be offered to the host tier.
  void enter(BlockTable& table, std::span<const int32_t> ids, const PrefixSalt& salt,
             std::span<const BlockKey> keys = {});
  // Before the table is cleared.
  void leave(BlockTable& table);

  // A block that lost its last owner and may be given up sooner or later, with what it is named by; in the
  // order in which they did. False: there is none.
  bool next_left(BlockId& block, BlockKey& key, int& group);

  // Forgets everything; no table may be in it.
  void clear();

  int nodes() const { return int(nodes_.size() - spare_.size()); }
  // CHECKs what must hold, in O(blocks): for tests.
  void check() const;

  // A block is copied for a quarter of its tokens at least: the first tokens of a chat template alone are not
  // worth it.
  int least_copied() const { return std::max(1, block_tokens_ / 4); }
  // Evictions that are remembered, in pools.
  static constexpr size_t kPoolsRemembered = 4;
  // Where many sequences part from one prefix, the newest are looked at for one that goes on alike.
  static constexpr int kSiblingsSeen = 16;

 private:
  struct Node {
    uint64_t hash = 0;
    PrefixSalt salt{};
    BlockKey key = kNoBlockKey;
    int parent = -1, child = -1;    // child: the newest
    int younger = -1, older = -1;   // siblings
    int children = 0, cursors = 0;  // what it must stay for, besides blocks
    bool live = false;
  };

  void forget(BlockId block) override;
  void left(BlockId block) override;

  std::span<const int32_t> tokens(int node) const {
    return {tokens_.data() + size_t(node) * size_t(block_tokens_), size_t(block_tokens_)};
  }
  BlockId& block(int node, int group) { return blocks_[size_t(node) * windows_.size() + size_t(group)]; }
  BlockId block(int node, int group) const { return blocks_[size_t(node) * windows_.size() + size_t(group)]; }
  int groups() const { return int(windows_.size()); }
  // First block of a group that a row at `position` sees.
  int first_seen(int group, int position) const;
  uint64_t hash_of(int parent, const PrefixSalt& salt, std::span<const int32_t> tokens) const;
  int lookup(int parent, const PrefixSalt& salt, std::span<const int32_t> tokens, uint64_t hash) const;
  void find_copy(std::span<const int32_t> ids, const PrefixSalt& salt, int most, PrefixMatch& match) const;
  bool whole(int node) const;
  void count_stored(StoredMatch& match, std::span<const BlockKey> keys) const;

  int make(int parent, const PrefixSalt& salt, std::span<const int32_t> tokens, uint64_t hash);
  void adopt(BlockTable& table, int index, int node);
  void set_block(int node, int group, BlockId block);
  void move_cursor(PrefixCursor& cursor, int node);
  void remove_if_unused(int node);
  void remove(int node);
  void table_insert(int node);
  void table_erase(int node);

  BlockPool& pool_;
  const PrefixHash hash_;
  const int block_tokens_;
  const std::vector<int> windows_;  // [groups]
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // [nodes, block_tokens]
  std::vector<BlockId> blocks_;  // [nodes, groups]
  std::vector<int> spare_;       // nodes, a stack
  std::vector<int> node_of_;     // [blocks of the pool]; -1: not in the index
  std::vector<int> slots_;       // open addressing by hash, linear probing; -1: empty
  std::vector<int> run_;         // [groups], of find
  int newest_root_ = -1;
  RecentHashes evicted_;  // of nodes that went because their blocks did

  const HostTier* host_ = nullptr;
  std::vector<BlockId> left_;     // a ring of all that may be in it: [blocks of the pool]
  std::vector<uint8_t> in_left_;  // [blocks of the pool]
  size_t left_first_ = 0, left_count_ = 0;
};

}  // namespace sluice
