#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(SpscRing, IsFirstInFirstOutAndRefusesWhenFull) {
  SpscRing<int> ring(3);  // rounded up to a power of two
  ASSERT_EQ(ring.capacity(), 4u);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.push(10 * round + i));
    EXPECT_FALSE(ring.push(99));
    EXPECT_EQ(ring.size(), 4u);
    int out = -1;
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.pop(out));
      EXPECT_EQ(out, 10 * round + i);
    }
    EXPECT_FALSE(ring.pop(out));
  }
}

TEST(SpscRing, LosesAndDoublesNothingBetweenTwoThreads) {
  SpscRing<uint64_t> ring(8);
  constexpr uint64_t kCount = 200000;
  std::thread producer([&] {
    for (uint64_t i = 0; i < kCount;) {
      if (ring.push(i))
        ++i;
      else
        std::this_thread::yield();
    }
  });
  uint64_t expected = 0;
  while (expected < kCount) {
    uint64_t got;
    if (!ring.pop(got)) {
      std::this_thread::yield();
      continue;
    }
    if (got != expected) break;
    ++expected;
  }
  EXPECT_EQ(expected, kCount);
  // Emptied even after a failure, or the producer would never end.
  uint64_t rest;
  while (expected != kCount && ring.pop(rest)) {
  }
  producer.join();
}

TEST(MpmcQueue, RefusesWhenFullAndLeavesTheValueAlone) {
  MpmcQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.push(std::move(third)));
  ASSERT_NE(third, nullptr);
  std::unique_ptr<int> out;
  ASSERT_TRUE(queue.pop(out));
  EXPECT_EQ(*out, 1);
  EXPECT_TRUE(queue.push(std::move(third)));
  ASSERT_TRUE(queue.pop(out));
  EXPECT_EQ(*out, 2);
  ASSERT_TRUE(queue.pop(out));
  EXPECT_EQ(*out, 3);
  EXPECT_FALSE(queue.pop(out));
}

TEST(MpmcQueue, APoppedCellHoldsNothingBack) {
  MpmcQueue<std::shared_ptr<int>> queue(4);
  auto value = std::make_shared<int>(7);
  EXPECT_TRUE(queue.push(std::shared_ptr<int>(value)));
  {
    std::shared_ptr<int> out;
    ASSERT_TRUE(queue.pop(out));
  }
  EXPECT_EQ(value.use_count(), 1);
}

TEST(MpmcQueue, EveryValueArrivesOnceInOrderPerProducer) {
  constexpr int kProducers = 3, kConsumers = 2, kEach = 30000;
  MpmcQueue<int> queue(16);
  std::atomic<int> left{kProducers * kEach};
  std::vector<std::vector<int>> got(kConsumers);
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int i = 0; i < kEach;) {
        if (queue.push(p * kEach + i))
          ++i;
        else
          std::this_thread::yield();
      }
    });
  }
  for (int c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, c] {
      while (left.load() > 0) {
        int value;
        if (queue.pop(value))
          got[size_t(c)].push_back(value), --left;
        else
          std::this_thread::yield();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::set<int> all;
  for (const auto& mine : got) {
    int last[kProducers] = {-1, -1, -1};
    for (int value : mine) {
      EXPECT_TRUE(all.insert(value).second);
      EXPECT_GT(value, last[value / kEach]);
      last[value / kEach] = value;
    }
  }
  EXPECT_EQ(all.size(), size_t(kProducers * kEach));
}

}  // namespace
}  // namespace sluice
