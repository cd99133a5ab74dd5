// A pool with tiers: what it counts as free, when a conversion's source is, and how gaps are closed.
#include <gtest/gtest.h>

#include <string>

#include "kv/block_table.h"

namespace sluice {
namespace {

constexpr KvTiering kInt8{.stages = {{{KvTier::int8, 0}}}, .count = 1};
constexpr KvTiering kInt4{.stages = {{{KvTier::int4, 0}}}, .count = 1};

struct Pool {
  explicit Pool(int slots, const KvTiering& tiering = kInt8) : blocks(slots, tiering) { moves.reserve(100); }
  std::vector<BlockId> take(int n) {
    std::vector<BlockId> ids;
    while (n-- > 0) ids.push_back(blocks.take());
    return ids;
  }
  void convert(const std::vector<BlockId>& ids, KvTier tier) {
    for (const BlockId id : ids) EXPECT_TRUE(blocks.convert(id, tier, moves));
  }
  void land() {
    blocks.land(moves);
    moves.clear();
  }
  BlockPool blocks;
  std::vector<BlockMove> moves;
};

TEST(TieredPool, HoldsBackASlotForConversions) {
  Pool pool(4);
  EXPECT_EQ(pool.blocks.total(), 4);
  EXPECT_EQ(pool.blocks.ids(), 8);
  EXPECT_EQ(pool.blocks.free(), 3);
  pool.take(3);
  EXPECT_EQ(pool.blocks.free(), 0);
  EXPECT_EQ(pool.blocks.take(), kNoBlock);
}

TEST(TieredPool, APlaceIsFreeWhenTheStepThatLeftItHasLanded) {
  Pool pool(4);
  const auto ids = pool.take(3);
  const KvRef before = pool.blocks.ref(ids[0]);
  pool.convert({ids[0], ids[1]}, KvTier::int8);
  EXPECT_EQ(pool.moves[0], BlockMove(before, pool.blocks.ref(ids[0])));
  EXPECT_EQ(kv_tier(pool.blocks.ref(ids[0])), KvTier::int8);
  EXPECT_EQ(pool.blocks.free(), 0);
  EXPECT_EQ(pool.blocks.coming(), 2);
  pool.land();
  EXPECT_EQ(pool.blocks.coming(), 0);
  EXPECT_EQ(pool.blocks.free(), 1) << "two slots left, one taken, and one held back";
  for (const BlockId id : ids) pool.blocks.drop(id);
  EXPECT_EQ(pool.blocks.used(), 0);
  EXPECT_EQ(pool.blocks.use().free, 16);
}

TEST(TieredPool, CountsItsMemoryByWhatTakesIt) {
  Pool pool(4, kInt4);
  const auto ids = pool.take(3);
  pool.convert({ids[0], ids[1]}, KvTier::int4);
  pool.land();
  pool.blocks.keep(ids[1]);
  pool.blocks.drop(ids[1]);
  const PoolUse use = pool.blocks.use();
  EXPECT_EQ(use.owned, 4 + 1);
  EXPECT_EQ(use.cached, 1);
  EXPECT_EQ(use.gaps, 2);
  EXPECT_EQ(use.free, 8);
  EXPECT_EQ(use.blocks[size_t(KvTier::full)], 1);
  EXPECT_EQ(use.blocks[size_t(KvTier::int4)], 2);
}

// Two requests' blocks lie side by side; one ends, and the other's are moved together.
TEST(TieredPool, GapsBetweenBlocksAreClosedWhereASlotIsNeeded) {
  Pool pool(7);
  const auto ids = pool.take(6);
  pool.convert({ids[0], ids[1]}, KvTier::int8);
  pool.land();
  pool.convert({ids[2], ids[3]}, KvTier::int8);
  pool.land();
  pool.convert({ids[4], ids[5]}, KvTier::int8);
  pool.land();
  for (const int i : {0, 2, 4}) pool.blocks.drop(ids[size_t(i)]);
  EXPECT_EQ(pool.blocks.used(), 3) << "each half empty";
  EXPECT_EQ(pool.blocks.coming(), 1);
  EXPECT_EQ(pool.blocks.close_gaps(10, pool.moves), 1);
  EXPECT_EQ(pool.blocks.used(), 3);
  EXPECT_EQ(pool.blocks.coming(), 1);
  pool.land();
  EXPECT_EQ(pool.blocks.used(), 2);
  EXPECT_EQ(pool.blocks.close_gaps(10, pool.moves), 0) << "one gap is nothing to close";
}

// It is not in the table's hands whether another sequence has converted a block that both have.
TEST(TieredPool, ASharedBlockIsConvertedOnceInAStep) {
  Pool pool(6, {.stages = {{{KvTier::int8, 0}, {KvTier::int4, 64}}}, .count = 2});
  const BlockId id = pool.take(1)[0];
  EXPECT_TRUE(pool.blocks.convert(id, KvTier::int8, pool.moves));
  EXPECT_FALSE(pool.blocks.convert(id, KvTier::int4, pool.moves)) << "it would be read before it is there";
  pool.land();
  EXPECT_TRUE(pool.blocks.convert(id, KvTier::int4, pool.moves));
}

TEST(TieredTable, BlocksGoToSmallerTiersAsTheyAge) {
  const KvTiering tiering{.stages = {{{KvTier::int8, 8}, {KvTier::int4, 16}}}, .count = 2};
  const KvLayout layout{
      .block_tokens = 4, .windows = {0}, .max_length = 64, .max_step_tokens = 4, .tiering = tiering};
  Pool pool(20, tiering);
  BlockTable table(layout);
  ASSERT_TRUE(table.grow(pool.blocks, 30));
  const auto tiers = [&] {
    std::string row;
    for (const BlockId id : table.row(0))
      row += kv_tier_name(kv_tier(pool.blocks.ref(id)))[0] == 'f' ? 'f'
             : kv_tier(pool.blocks.ref(id)) == KvTier::int8       ? '8'
                                                                  : '4';
    return row;
  };
  EXPECT_TRUE(table.convert(pool.blocks, tiering, 7, pool.moves, 100));
  EXPECT_EQ(tiers(), "ffffffff");
  EXPECT_FALSE(table.convert(pool.blocks, tiering, 30, pool.moves, 2)) << "no more than it may";
  EXPECT_TRUE(table.convert(pool.blocks, tiering, 30, pool.moves, 100));
  EXPECT_EQ(tiers(), "f4488fff") << "what is older than both goes straight to the later; the first block stays";
  pool.land();
  EXPECT_EQ(table.held_slots(), (3 * 1 + 2 * 2 + 3 * 4 + 3) / 4);
  EXPECT_TRUE(table.convert(pool.blocks, tiering.hurried(0), 30, pool.moves, 100))
      << "under pressure, all that is whole";
  EXPECT_EQ(tiers(), "f444444f");
  pool.land();
  table.clear(pool.blocks);
  EXPECT_EQ(pool.blocks.used(), 0);
}

TEST(KvLayout, PeakBlocksWithTiersBoundWhatASequenceHolds) {
  KvLayout layout{
      .block_tokens = 4, .windows = {0}, .max_length = 4000, .max_step_tokens = 8, .tiering = kInt8};
  EXPECT_EQ(layout.settled_blocks(4), 1);
  EXPECT_EQ(layout.settled_blocks(400), (2 * 4 + 98 * 2 + 3) / 4);
  EXPECT_GT(layout.peak_blocks(400), layout.settled_blocks(400)) << "some are on their way";
  EXPECT_LT(layout.peak_blocks(4000), 1000 * 6 / 10);
  layout.tiering = {};
  EXPECT_EQ(layout.peak_blocks(400), 100);
  EXPECT_EQ(layout.settled_blocks(400), 100);
  layout.whole_context = true;
  EXPECT_EQ(layout.peak_blocks(4), 1000);
}

}  // namespace
}  // namespace sluice
