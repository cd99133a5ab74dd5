// What is found, what is not, and what gives way first.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

namespace sluice {
namespace {

using Ids = std::vector<int32_t>;

Ids range(int from, int count) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}
Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Blocks of 4 tokens. A sequence here is a table that computes all of its ids at once.
struct Scene {
  explicit Scene(int blocks, std::vector<int> windows = {0}, PrefixHash hash = chained_hash)
      : layout{.block_tokens = 4, .windows = std::move(windows), .max_length = 256, .max_step_tokens = 256},
        pool(blocks),
        index(layout, pool, hash) {
    copies.reserve(64);
  }
  ~Scene() { index.check(); }

  PrefixMatch find(const Ids& ids, PrefixSalt salt = {}) { return index.find(ids, salt, int(ids.size()) - 1); }
  int found(const Ids& ids, PrefixSalt salt = {}) { return find(ids, salt).tokens; }

  BlockTable& run(const Ids& ids, PrefixSalt salt = {}) {
    BlockTable& table = tables.emplace_back(layout);
    index.take_over(table, find(ids, salt), copies);
    CHECK(table.grow(pool, int(ids.size())));
    index.enter(table, ids, salt);
    table.drop_behind(pool, int(ids.size()));
    return table;
  }
  void end(BlockTable& table) {
    index.leave(table);
    table.clear(pool);
  }
  void run_and_end(const Ids& ids, PrefixSalt salt = {}) { end(run(ids, salt)); }

  KvLayout layout;
  BlockPool pool;
  PrefixIndex index;
  std::deque<BlockTable> tables;
  std::vector<BlockMove> copies;
};

TEST(PrefixIndex, FindsTheWholeBlocksOfAPrefixButNeverTheLastToken) {
  Scene s(16);
  s.run_and_end(range(0, 14));
  EXPECT_EQ(s.pool.used(), 0);
  EXPECT_EQ(s.pool.cached(), 3);
  EXPECT_EQ(s.pool.free(), 16) << "what is cached can be had";
  EXPECT_EQ(s.found(range(0, 14)), 12) << "the block with two tokens was never whole";
  EXPECT_EQ(s.found(range(0, 8) + range(50, 8)), 8);
  EXPECT_EQ(s.found(range(0, 13)), 12);
  EXPECT_EQ(s.found(range(1, 13)), 0);
  EXPECT_EQ(s.found(range(0, 12)), 11) << "a part of the last block, for a copy";
}

TEST(PrefixIndex, BlocksInUseAreSharedAndNotWrittenTo) {
  Scene s(16);
  BlockTable& a = s.run(range(0, 10));
  BlockTable& b = s.run(range(0, 8) + range(50, 8));
  EXPECT_EQ(a.row(0)[1], b.row(0)[1]);
  EXPECT_NE(a.row(0)[2], b.row(0)[2]);
  EXPECT_EQ(s.pool.owners(a.row(0)[0]), 2);
  EXPECT_EQ(s.pool.used(), 5);
  EXPECT_EQ(a.held_alone(s.pool), 1);
  EXPECT_EQ(s.index.used_by_others(s.find(range(0, 9))), 2);
  s.end(a);
  EXPECT_EQ(s.pool.owners(b.row(0)[0]), 1);
  s.end(b);
  EXPECT_EQ(s.pool.used(), 0);
}

TEST(PrefixIndex, AnotherSaltSharesNothing) {
  Scene s(16);
  s.run_and_end(range(0, 13), {1, 0});
  EXPECT_EQ(s.found(range(0, 13), {1, 0}), 12);
  EXPECT_EQ(s.found(range(0, 13)), 0);
  EXPECT_EQ(s.found(range(0, 13), {0, 1}), 0);
}

uint64_t one_for_all(uint64_t, std::span<const int32_t>) { return 42; }

TEST(PrefixIndex, WhereAllHashesAreEqualParentAndTokensDecide) {
  Scene s(64, {0}, one_for_all);
  for (int i = 0; i < 6; ++i) s.run_and_end(range(100 * i, 9), {uint64_t(i % 2), 0});
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(s.found(range(100 * i, 9), {uint64_t(i % 2), 0}), 8);
    EXPECT_EQ(s.found(range(100 * i, 9), {uint64_t(1 - i % 2), 0}), 0);
    EXPECT_EQ(s.found(range(100 * i + 4, 5)), 0) << "the same tokens behind nothing are another block";
  }
  s.index.check();
  while (s.pool.evict()) s.index.check();
  EXPECT_EQ(s.index.nodes(), 0);
}

TEST(PrefixIndex, WithinABlockTheCommonPartIsCopied) {
  Scene s(16);
  s.run_and_end(range(0, 12));
  const PrefixMatch match = s.find(range(0, 7) + range(70, 5));
  EXPECT_EQ(match.blocks, 1);
  EXPECT_EQ(match.copied, 3);
  BlockTable table(s.layout);
  s.index.take_over(table, match, s.copies);
  ASSERT_EQ(s.copies.size(), 1u);
  const auto [from, to] = s.copies[0];
  EXPECT_EQ(table.row(0)[1], to);
  EXPECT_EQ(s.pool.owners(to), 1);
  EXPECT_EQ(s.pool.owners(from), 1) << "held until the copy is made";
  while (s.pool.take() != kNoBlock) {
  }
  EXPECT_TRUE(s.pool.kept(from));
  s.index.enter(table, range(0, 7) + range(70, 1), {});
  EXPECT_EQ(s.pool.owners(from), 0);
  EXPECT_EQ(s.found(range(0, 7) + range(70, 5)), 8);
  s.end(table);
}

TEST(PrefixIndex, TwoThatComputedTheSameEndUpWithOneBlock) {
  Scene s(16);
  BlockTable a(s.layout), b(s.layout);
  ASSERT_TRUE(a.grow(s.pool, 9) && b.grow(s.pool, 9));
  EXPECT_EQ(s.pool.used(), 6);
  s.index.enter(a, range(0, 9), {});
  s.index.enter(b, range(0, 9), {});
  EXPECT_EQ(s.pool.used(), 4);
  EXPECT_EQ(a.row(0)[1], b.row(0)[1]);
  EXPECT_NE(a.row(0)[2], b.row(0)[2]);
  s.end(a), s.end(b);
}

TEST(PrefixIndex, TheLongestUnusedGivesWayFirstAndOfAPrefixItsEnd) {
  Scene s(8);
  s.run_and_end(range(0, 13));    // 3 blocks
  s.run_and_end(range(100, 13));  // 3 blocks
  EXPECT_EQ(s.found(range(0, 13)), 12);
  s.run_and_end(range(0, 5));             // the first is used again
  BlockTable& c = s.run(range(200, 16));  // 2 were empty, 2 give way
  EXPECT_EQ(s.pool.evicted(), 2u);
  EXPECT_EQ(s.found(range(0, 13)), 4) << "all but its first block had not been used for the longest";
  EXPECT_EQ(s.found(range(100, 13)), 12);
  s.end(c);
}

TEST(PrefixIndex, TokensThatAreMissedBecauseTheyGaveWayAreCounted) {
  Scene s(7);
  s.run_and_end(range(0, 21));  // five blocks
  const auto evicted = [&](const Ids& ids, int found, PrefixSalt salt = {}) {
    return s.index.evicted_tokens(ids, salt, found, int(ids.size()) - 1);
  };
  EXPECT_EQ(evicted(range(500, 21), 0), 0) << "nothing has given way";
  s.run_and_end(range(100, 13));  // pushes out the last two of them
  EXPECT_EQ(s.found(range(0, 21)), 12);
  EXPECT_EQ(evicted(range(0, 21), 12), 8);
  EXPECT_EQ(evicted(range(0, 21), 14), 6) << "two were copied";
  EXPECT_EQ(evicted(range(0, 17) + range(60, 4), 12), 4) << "the last block is another one";
  EXPECT_EQ(evicted(range(0, 20), 12), 4) << "the last token is computed anyway";
  EXPECT_EQ(evicted(range(500, 21), 0), 0) << "never was here";
  EXPECT_EQ(evicted(range(0, 21), 12, {1, 0}), 0) << "another salt";
}

TEST(PrefixIndex, EvictionsAreRememberedForAWhileOnly) {
  Scene s(4);
  for (int i = 0; i < 500; ++i) s.run_and_end(range(1000 * i, 9));
  int remembered = 0;
  for (int i = 0; i < 500; ++i) remembered += s.index.evicted_tokens(range(1000 * i, 9), {}, 0, 8) > 0;
  EXPECT_GT(remembered, 0);
  EXPECT_LT(remembered, 50);
  EXPECT_GT(s.index.evicted_tokens(range(1000 * 497, 9), {}, 0, 8), 0) << "not the newest";
}

TEST(PrefixIndex, WhatManyFoundGivesWayLast) {
  Scene s(8);
  for (int i = 0; i <= BlockPool::kHotHits; ++i) s.run_and_end(range(0, 9));
  EXPECT_EQ(s.pool.hot(), 2);
  for (int i = 1; i < 10; ++i) s.run_and_end(range(100 * i, 21));
  EXPECT_EQ(s.found(range(0, 9)), 8);
  EXPECT_EQ(s.found(range(900, 21)), 20);
  EXPECT_EQ(s.found(range(800, 21)), 0);
}

TEST(PrefixIndex, TheHotAreAtMostHalfOfThePool) {
  Scene s(8);
  for (int i = 0; i <= BlockPool::kHotHits; ++i) s.run_and_end(range(0, 29));
  EXPECT_EQ(s.pool.cached(), 7);
  EXPECT_EQ(s.pool.hot(), 4);
  while (s.pool.evict()) s.index.check();
}

TEST(PrefixIndex, AWindowedGroupNeedsTheWindowBeforeTheEndOnly) {
  Scene s(32, {0, 6});
  BlockTable& a = s.run(range(0, 24));
  EXPECT_EQ(a.row(1)[0], kNoBlock);
  s.end(a);
  EXPECT_EQ(s.pool.cached(), 12) << "what fell behind the window is cached too";
  BlockTable b(s.layout);
  s.index.take_over(b, s.find(range(0, 20) + range(90, 3)), s.copies);
  EXPECT_EQ(b.row_blocks(), 5);
  EXPECT_EQ(b.row(1)[2], kNoBlock);
  EXPECT_NE(b.row(1)[3], kNoBlock) << "a row at 20 sees 15 .. 20";
  EXPECT_EQ(b.held(), 5 + 2);
  s.end(b);
}

TEST(PrefixIndex, WithoutItsWindowAPrefixIsFoundAsFarAsThereIsOne) {
  Scene s(12, {0, 6});
  s.run_and_end(range(0, 24));  // what fell behind the window lost its owner first
  ASSERT_EQ(s.pool.cached(), 12);
  ASSERT_TRUE(s.pool.evict() && s.pool.evict() && s.pool.evict());
  EXPECT_EQ(s.found(range(0, 24)), 23);
  EXPECT_EQ(s.found(range(0, 12) + range(90, 3)), 0) << "blocks 1 and 2 of the windowed group are gone";
}

TEST(PrefixIndex, ModelsOfWindowsAloneDoNotRunOutOfNodes) {
  Scene s(8, {6});
  for (int i = 0; i < 40; ++i) s.run_and_end(range(1000 * i, 32));
  s.index.check();
  EXPECT_LE(s.index.nodes(), 8 + 64);
  EXPECT_EQ(s.found(range(39000, 32)), 31);
}

TEST(PrefixIndex, ClearForgetsEverything) {
  Scene s(8);
  s.run_and_end(range(0, 13));
  s.index.clear();
  EXPECT_EQ(s.found(range(0, 13)), 0);
  EXPECT_EQ(s.pool.cached(), 0);
  EXPECT_EQ(s.index.nodes(), 0);
}

}  // namespace
}  // namespace sluice
