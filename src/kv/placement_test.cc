#include "kv/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace sluice {
namespace {

TEST(Placement, ASlotHoldsOneFullBlockOrTwoHalvesOrFourQuarters) {
  Placement placement(2);
  const KvRef full = placement.take(KvTier::full);
  for (int i = 0; i < 4; ++i) EXPECT_NE(placement.take(KvTier::int4), kNoKvRef);
  EXPECT_EQ(placement.take(KvTier::int4), kNoKvRef);
  EXPECT_EQ(placement.take(KvTier::full), kNoKvRef);
  placement.drop(full);
  const KvRef a = placement.take(KvTier::int8), b = placement.take(KvTier::int8);
  EXPECT_EQ(kv_first_unit(b) - kv_first_unit(a), 2);
  EXPECT_EQ(placement.used_units(), 8);
  EXPECT_EQ(placement.wasted_units(), 0);
}

TEST(Placement, TiersDoNotShareASlot) {
  Placement placement(1);
  const KvRef quarter = placement.take(KvTier::int4);
  EXPECT_EQ(placement.take(KvTier::int8), kNoKvRef);
  EXPECT_EQ(placement.take(KvTier::fp8), kNoKvRef);
  EXPECT_EQ(placement.wasted_units(), 3);
  placement.drop(quarter);
  EXPECT_EQ(placement.free_slots(), 1);
  EXPECT_NE(placement.take(KvTier::fp8), kNoKvRef);
}

TEST(Placement, AGapIsFilledBeforeASlotIsOpened) {
  Placement placement(3);
  std::vector<KvRef> refs;
  for (int i = 0; i < 8; ++i) refs.push_back(placement.take(KvTier::int4));
  placement.drop(refs[1]);
  placement.drop(refs[6]);
  EXPECT_EQ(placement.room(KvTier::int4), 2 + 4);
  placement.take(KvTier::int4);
  placement.take(KvTier::int4);
  EXPECT_EQ(placement.free_slots(), 1);
  EXPECT_EQ(placement.wasted_units(), 0);
}

// Random blocks of all tiers come and go: no two overlap, counts are right, and room() is what can be placed.
TEST(Placement, RandomBlocksNeverOverlap) {
  std::mt19937 random(7);
  constexpr KvTier kAll[] = {KvTier::full, KvTier::int8, KvTier::fp8, KvTier::int4};
  Placement placement(40);
  std::vector<KvRef> live;
  std::set<int64_t> taken;
  for (int round = 0; round < 20000; ++round) {
    if (random() % 100 < (round / 2000 % 2 ? 45 : 55)) {
      const KvTier tier = kAll[random() % 4];
      const int room = placement.room(tier);
      const KvRef ref = placement.take(tier);
      ASSERT_EQ(ref != kNoKvRef, room > 0);
      if (ref == kNoKvRef) continue;
      ASSERT_EQ(kv_tier(ref), tier);
      ASSERT_EQ(placement.room(tier), room - 1);
      for (int u = 0; u < kv_units(tier); ++u) {
        const int64_t unit = kv_first_unit(ref) + u;
        ASSERT_LT(unit, 40 * kSlotUnits);
        ASSERT_TRUE(taken.insert(unit).second) << "two blocks share a quarter";
      }
      live.push_back(ref);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const KvRef ref = live.back();
      live.pop_back();
      for (int u = 0; u < kv_units(kv_tier(ref)); ++u) taken.erase(kv_first_unit(ref) + u);
      placement.drop(ref);
    }
    ASSERT_EQ(placement.used_units(), int(taken.size()));
    std::set<int64_t> slots;
    for (const int64_t unit : taken) slots.insert(unit / kSlotUnits);
    ASSERT_EQ(placement.free_slots(), 40 - int(slots.size()));
  }
  for (const KvRef ref : live) placement.drop(ref);
  EXPECT_EQ(placement.used_units(), 0);
  EXPECT_EQ(placement.free_slots(), 40);
}

TEST(PlacementDeathTest, WhatIsNotThereCannotBeDropped) {
  Placement placement(1);
  const KvRef ref = placement.take(KvTier::int8);
  EXPECT_DEATH(placement.drop(kv_ref(KvTier::int8, 1)), "nothing lies there");
  placement.drop(ref);
  EXPECT_DEATH(placement.drop(ref), "nothing lies there");
}

}  // namespace
}  // namespace sluice
