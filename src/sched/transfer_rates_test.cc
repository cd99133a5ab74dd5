#include "sched/transfer_rates.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr TimeNs kMs = 1'000'000;

TEST(TransferRates, NothingIsKnownAtFirstSoTheFirstIsRestored) {
  const TransferRates rates;
  EXPECT_EQ(rates.host(), 0);
  EXPECT_GT(rates.step_bytes(), kMiB);
  EXPECT_TRUE(rates.worth_restoring(1000 * kMiB, 1000 * kMiB, 1e6));
}

TEST(TransferRates, WhatIsSoonerByMeasuredRatesIsDone) {
  TransferRates rates;
  rates.note_host(100 * kMiB, 10 * kMs);
  rates.note_disk(100 * kMiB, 100 * kMs);
  EXPECT_NEAR(rates.restore_ns(50 * kMiB, 0), 5e6, 1);
  EXPECT_NEAR(rates.restore_ns(0, 50 * kMiB), 55e6, 1) << "from the file to the host, then to the pool";
  EXPECT_TRUE(rates.worth_restoring(50 * kMiB, 0, 6e6));
  EXPECT_FALSE(rates.worth_restoring(50 * kMiB, 0, 4e6));
  EXPECT_FALSE(rates.worth_restoring(0, 50 * kMiB, 50e6));
  EXPECT_TRUE(rates.worth_restoring(0, 50 * kMiB, 0)) << "nobody knows what computing would take";
}

TEST(TransferRates, AStepCopiesWhatTakesFourMilliseconds) {
  TransferRates rates;
  rates.note_host(100 * kMiB, 10 * kMs);
  EXPECT_NEAR(double(rates.step_bytes()), 40.0 * kMiB, 1);
}

TEST(TransferRates, FollowsTheDeviceAndIgnoresCopiesThatSayLittle) {
  TransferRates rates;
  for (int i = 0; i < 50; ++i) rates.note_host(10 * kMiB, kMs);
  const double fast = rates.host();
  rates.note_host(1000, kMs);
  rates.note_host(0, kMs);
  rates.note_host(10 * kMiB, 0);
  EXPECT_EQ(rates.host(), fast);
  for (int i = 0; i < 50; ++i) rates.note_host(10 * kMiB, 10 * kMs);
  EXPECT_NEAR(rates.host(), fast / 10, fast / 1000);
}

TEST(TransferRates, RoomForCopiesOfOneStepIsBounded) {
  EXPECT_EQ(most_host_moves(1), 4096);
  EXPECT_EQ(most_host_moves(size_t{1} << 40), 16);
  EXPECT_GT(most_host_moves(2 * kMiB), 500);
}

}  // namespace
}  // namespace sluice
