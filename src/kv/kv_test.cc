// Pool and tables under random traffic: blocks are conserved, never owned twice by accident, never leaked.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace sluice {
namespace {

TEST(BlockPool, HandsOutEachBlockOnceAndTheLastFreedFirst) {
  BlockPool pool(4);
  std::set<BlockId> seen;
  for (int i = 0; i < 4; ++i) seen.insert(pool.take());
  EXPECT_EQ(seen, (std::set<BlockId>{0, 1, 2, 3}));
  EXPECT_EQ(pool.take(), kNoBlock);
  pool.drop(2);
  pool.drop(1);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), 2);
}

TEST(BlockPool, ASharedBlockIsFreedByItsLastOwner) {
  BlockPool pool(1);
  const BlockId b = pool.take();
  pool.share(b);
  pool.drop(b);
  EXPECT_EQ(pool.used(), 1);
  pool.drop(b);
  EXPECT_EQ(pool.used(), 0);
}

TEST(BlockPoolDeathTest, ADoubleFreeIsABug) {
  BlockPool pool(2);
  const BlockId b = pool.take();
  pool.drop(b);
  EXPECT_DEATH(pool.drop(b), "freeing a free block");
  EXPECT_DEATH(pool.share(b), "sharing an empty block");
  EXPECT_DEATH(pool.drop(7), "no such block");
}

TEST(BlockPool, RandomTrafficConservesBlocks) {
  std::mt19937 random(1);
  BlockPool pool(37);
  std::map<BlockId, int> owned;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t choice = random() % 3;
    if (choice == 0) {
      const BlockId b = pool.take();
      if (b == kNoBlock) {
        EXPECT_EQ(owned.size(), 37u);
      } else {
        ASSERT_FALSE(owned.count(b));
        owned[b] = 1;
      }
    } else if (!owned.empty()) {
      auto it = std::next(owned.begin(), long(random() % owned.size()));
      if (choice == 1 && it->second < 3) {
        pool.share(it->first);
        ++it->second;
      } else {
        pool.drop(it->first);
        if (--it->second == 0) owned.erase(it);
      }
    }
    ASSERT_EQ(pool.used(), int(owned.size()));
    ASSERT_EQ(pool.free() + pool.used(), pool.total());
  }
  for (auto& [b, n] : owned) EXPECT_EQ(pool.owners(b), n);
}

KvLayout layout(std::vector<int> windows, int max_length = 256, int max_step = 16) {
  return {
      .block_tokens = 4, .windows = std::move(windows), .max_length = max_length, .max_step_tokens = max_step};
}

TEST(BlockTable, GrowsOnlyWhenATokenNeedsIt) {
  BlockPool pool(8);
  BlockTable table(layout({0, 0}));
  EXPECT_EQ(table.missing(1), 2);
  ASSERT_TRUE(table.grow(pool, 1));
  EXPECT_EQ(pool.used(), 2);
  ASSERT_TRUE(table.grow(pool, 4));
  EXPECT_EQ(pool.used(), 2);
  ASSERT_TRUE(table.grow(pool, 5));
  EXPECT_EQ(pool.used(), 4);
  EXPECT_EQ(table.row(1).size(), 2u);
  table.clear(pool);
  EXPECT_EQ(pool.used(), 0);
}

TEST(BlockTable, TakesNothingWhenThePoolIsShort) {
  BlockPool pool(5);
  BlockTable table(layout({0, 0}));
  ASSERT_TRUE(table.grow(pool, 4));
  EXPECT_FALSE(table.grow(pool, 12));
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(table.held(), 2);
  EXPECT_TRUE(table.grow(pool, 8));
  table.clear(pool);
}

TEST(BlockTable, DropsWhatIsBehindTheWindowAndOnlyThat) {
  BlockPool pool(16);
  BlockTable table(layout({0, 6}));
  ASSERT_TRUE(table.grow(pool, 16));
  table.drop_behind(pool, 9);  // a row at 9 sees 4..9: block 0 goes
  EXPECT_EQ(table.row(1)[0], kNoBlock);
  EXPECT_NE(table.row(1)[1], kNoBlock);
  EXPECT_NE(table.row(0)[0], kNoBlock);
  EXPECT_EQ(pool.used(), 7);
  table.drop_behind(pool, 9);
  EXPECT_EQ(pool.used(), 7);
  table.clear(pool);
  EXPECT_EQ(pool.used(), 0);
}

// Sequences step by step with two steps in flight, as the scheduler drives them: peak_blocks bounds what is
// held.
TEST(BlockTable, PeakBlocksBoundsEveryHistory) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const KvLayout shape =
        layout({0, int(1 + random() % 20), int(1 + random() % 60)}, 256, int(1 + random() % 24));
    BlockPool pool(3 * 64);
    BlockTable table(shape);
    int computed = 0, flying = 0, planned = 0;
    while (planned < 250) {
      const int count = std::min(250 - planned, int(1 + random() % uint32_t(shape.max_step_tokens)));
      ASSERT_TRUE(table.grow(pool, planned + count));
      planned += count;
      ASSERT_LE(table.held(), shape.peak_blocks(planned));
      computed += flying;  // the step before has landed
      flying = count;
      table.drop_behind(pool, computed);
      for (int g = 1; g < 3; ++g)
        for (int p = std::max(0, computed - shape.windows[size_t(g)] + 1); p < planned; ++p)
          ASSERT_NE(table.row(g)[size_t(p / 4)], kNoBlock) << "position " << p << " is still seen";
    }
    table.clear(pool);
    ASSERT_EQ(pool.used(), 0);
  }
}

TEST(BlockTable, RandomTrafficNeitherLeaksNorSharesByAccident) {
  std::mt19937 random(3);
  const KvLayout shape = layout({0, 8, 20}, 128);
  BlockPool pool(60);
  struct Row {
    std::unique_ptr<BlockTable> table;
    int length = 0;
  };
  std::vector<Row> rows(6);
  for (Row& r : rows) r.table = std::make_unique<BlockTable>(shape);
  for (int i = 0; i < 20000; ++i) {
    Row& r = rows[random() % rows.size()];
    const uint32_t choice = random() % 8;
    if (choice == 0) {
      r.table->clear(pool);
      r.length = 0;
    } else if (choice < 5) {
      const int length = std::min(128, r.length + int(random() % 9));
      if (r.table->grow(pool, length)) r.length = length;
    } else {
      r.table->drop_behind(pool, r.length);
    }
    std::set<BlockId> owned;
    int held = 0;
    for (Row& other : rows) {
      held += other.table->held();
      for (int g = 0; g < 3; ++g)
        for (BlockId b : other.table->row(g))
          ASSERT_TRUE(b == kNoBlock || owned.insert(b).second) << "block " << b << " is in two tables";
    }
    ASSERT_EQ(int(owned.size()), held);
    ASSERT_EQ(pool.used(), held);
  }
  for (Row& r : rows) r.table->clear(pool);
  EXPECT_EQ(pool.used(), 0);
}

}  // namespace
}  // namespace sluice
