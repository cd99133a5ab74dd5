#include "kv/host_tier.h"

#include <gtest/gtest.h>

#include <deque>

#include "kv/block_key.h"

namespace sluice {
namespace {

constexpr size_t kSlotBytes = 400;

struct Jobs final : DiskQueue {
  bool post(const DiskJob& job) override {
    if (posted.size() == most) return false;
    posted.push_back(job);
    return true;
  }
  // The oldest job ends.
  void end(HostTier& tier, DiskOutcome outcome = DiskOutcome::done) {
    const DiskJob job = posted.front();
    posted.pop_front();
    tier.finish(job, outcome);
  }
  size_t most = 100;
  std::deque<DiskJob> posted;
};

BlockKey key(int n) {
  const int32_t ids[] = {n};
  return next_key(root_key({}), ids);
}

int put(HostTier& tier, int n, KvTier kv = KvTier::full) {
  const int entry = tier.reserve(key(n), 0, kv);
  if (entry >= 0) tier.filled(entry);
  return entry;
}

TEST(HostTier, IsFoundByNameAndGroupOnceItIsFilled) {
  HostTier tier({.slots = 4, .slot_bytes = kSlotBytes});
  const int entry = tier.reserve(key(1), 1, KvTier::int8);
  EXPECT_EQ(tier.find(key(1), 1), -1) << "its content is on the way";
  tier.filled(entry);
  EXPECT_EQ(tier.find(key(1), 1), entry);
  EXPECT_EQ(tier.find(key(1), 0), -1);
  EXPECT_EQ(tier.find(key(2), 1), -1);
  EXPECT_EQ(tier.bytes(entry), kSlotBytes / 2);
  EXPECT_EQ(tier.reserve(key(1), 1, KvTier::full), -1) << "it is here already";
  tier.check();
}

TEST(HostTier, WhatWasNotUsedForTheLongestGivesWay) {
  HostTier tier({.slots = 3, .slot_bytes = kSlotBytes});
  for (int n = 0; n < 3; ++n) put(tier, n);
  tier.touch(tier.find(key(0), 0));
  put(tier, 3);
  EXPECT_GE(tier.find(key(0), 0), 0);
  EXPECT_EQ(tier.find(key(1), 0), -1);
  EXPECT_EQ(tier.evicted(), 1u);
  tier.check();
}

TEST(HostTier, WhatIsHeldStays) {
  HostTier tier({.slots = 2, .slot_bytes = kSlotBytes});
  const int a = put(tier, 0), b = put(tier, 1);
  tier.hold(a), tier.hold(b);
  EXPECT_EQ(put(tier, 2), -1);
  tier.release(b);
  EXPECT_GE(put(tier, 2), 0);
  EXPECT_EQ(tier.find(key(0), 0), a);
  tier.check();
}

TEST(HostTier, SmallTiersShareSlots) {
  HostTier tier({.slots = 2, .slot_bytes = kSlotBytes});
  for (int n = 0; n < 8; ++n) EXPECT_GE(put(tier, n, KvTier::int4), 0);
  EXPECT_EQ(tier.evicted(), 0u);
  EXPECT_EQ(tier.host_bytes(), 2 * kSlotBytes);
  put(tier, 8, KvTier::full);
  EXPECT_EQ(tier.evicted(), 4u) << "a whole slot had to be emptied";
  tier.check();
}

TEST(HostTier, WhatIsInAFileIsFoundThere) {
  Jobs jobs;
  HostTier tier({.slots = 1, .slot_bytes = kSlotBytes, .disk_bytes = 10 * kSlotBytes, .disk_blocks = 10},
                &jobs);
  const int first = put(tier, 0);
  ASSERT_EQ(jobs.posted.size(), 1u);
  EXPECT_EQ(put(tier, 1), -1) << "its bytes are being written";
  jobs.end(tier);
  EXPECT_GE(put(tier, 1), 0);
  jobs.end(tier);
  EXPECT_EQ(tier.where(first), HostTier::Where::disk);
  EXPECT_EQ(tier.evicted(), 0u);

  tier.hold(first);
  EXPECT_TRUE(tier.fetch(first));
  EXPECT_EQ(tier.where(first), HostTier::Where::coming);
  EXPECT_EQ(jobs.posted.front().kind, DiskJob::Kind::read);
  jobs.end(tier);
  EXPECT_EQ(tier.where(first), HostTier::Where::host);
  EXPECT_TRUE(jobs.posted.empty()) << "it is in a file already";
  tier.release(first);
  tier.check();
}

TEST(HostTier, ACorruptFileIsForgottenAndWhoWaitsIsTold) {
  Jobs jobs;
  HostTier tier({.slots = 2, .slot_bytes = kSlotBytes, .disk_bytes = 10 * kSlotBytes, .disk_blocks = 10},
                &jobs);
  EXPECT_TRUE(tier.add_file(key(0), 0, KvTier::int8));
  const int entry = tier.find(key(0), 0);
  tier.hold(entry);
  EXPECT_TRUE(tier.fetch(entry));
  jobs.end(tier, DiskOutcome::corrupt);
  EXPECT_EQ(tier.where(entry), HostTier::Where::nowhere);
  EXPECT_EQ(tier.find(key(0), 0), -1);
  EXPECT_EQ(jobs.posted.front().kind, DiskJob::Kind::remove);
  tier.release(entry);
  tier.check();
  jobs.end(tier);
  EXPECT_GE(put(tier, 0), 0) << "computed again, it is kept again";
}

TEST(HostTier, FilesTakeNoMoreThanTheyMay) {
  Jobs jobs;
  HostTier tier({.slots = 8, .slot_bytes = kSlotBytes, .disk_bytes = 2 * kSlotBytes, .disk_blocks = 8}, &jobs);
  for (int n = 0; n < 3; ++n) {
    put(tier, n);
    while (!jobs.posted.empty()) jobs.end(tier);
  }
  EXPECT_EQ(tier.blocks_on_disk(), 2);
  EXPECT_EQ(tier.disk_bytes(), 2 * kSlotBytes);
  EXPECT_EQ(tier.blocks_on_host(), 3);
  tier.check();
}

TEST(HostTier, ADiskThatTakesNothingLosesNothingOnTheHost) {
  Jobs jobs;
  HostTier tier({.slots = 2, .slot_bytes = kSlotBytes, .disk_bytes = 9 * kSlotBytes, .disk_blocks = 9}, &jobs);
  put(tier, 0);
  jobs.end(tier, DiskOutcome::failed);
  EXPECT_EQ(tier.where(tier.find(key(0), 0)), HostTier::Where::host);
  EXPECT_EQ(tier.disk_bytes(), 0u);
  jobs.most = 0;
  EXPECT_GE(put(tier, 1), 0);
  tier.check();
}

TEST(BlockKey, NamesTheSaltAndAllTokensUpToHere) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<BlockKey> keys, others, salted;
  extend_keys(keys, ids, {}, 4);
  EXPECT_EQ(keys.size(), 2u);
  std::vector<int32_t> changed = ids;
  changed[1] = 7;
  extend_keys(others, changed, {}, 4);
  extend_keys(salted, ids, {1, 0}, 4);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(keys[i], others[i]);
    EXPECT_NE(keys[i], salted[i]);
  }
  std::vector<BlockKey> bit_by_bit;
  extend_keys(bit_by_bit, std::span(ids).first(5), {}, 4);
  extend_keys(bit_by_bit, ids, {}, 4);
  EXPECT_EQ(keys, bit_by_bit);
}

}  // namespace
}  // namespace sluice
