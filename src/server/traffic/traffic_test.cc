// Rates, windows and limits on a clock of the test's own.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "server/traffic/admission.h"

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr TimeNs kStart = 1000 * kSecond;

TEST(RateBucket, AMinutesWorthPassesAtOnceAndThenAsTimeGoesOn) {
  RateBucket bucket;
  bucket.set_rate(60);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(bucket.take(1, kStart), 0);
  EXPECT_EQ(bucket.remaining(kStart), 0);
  EXPECT_EQ(bucket.take(1, kStart), kSecond);
  EXPECT_EQ(bucket.take(10, kStart), 10 * kSecond);
  EXPECT_EQ(bucket.full_in(kStart), 60 * kSecond);
  EXPECT_EQ(bucket.take(1, kStart + kSecond), 0);
}

TEST(RateBucket, WhoWaitsAsLongAsToldIsLetIn) {
  RateBucket bucket;
  uint64_t random = 1;
  TimeNs now = kStart;
  for (int i = 0; i < 10000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (random >> 60 == 0) bucket.set_rate(double(random >> 40 & 1023) + 1);
    const double amount = double(random >> 33 & 255);
    now += TimeNs(random >> 50) * kMs / 16;
    const TimeNs wait = bucket.take(amount, now);
    if (wait == 0) continue;
    ASSERT_NE(bucket.take(amount, now + wait - 1), 0);
    now += wait;
    ASSERT_EQ(bucket.take(amount, now), 0);
  }
}

TEST(RateBucket, MoreThanAMinutesWorthPassesWhenItIsFullAndIsOwed) {
  RateBucket bucket;
  bucket.set_rate(100);
  EXPECT_EQ(bucket.take(300, kStart), 0);
  EXPECT_EQ(bucket.remaining(kStart), 0);
  EXPECT_EQ(bucket.take(1, kStart), 120 * kSecond + kSecond * 6 / 10);
}

TEST(RateBucket, WhatWasNotNeededComesBack) {
  RateBucket bucket;
  bucket.set_rate(100);
  bucket.take(80, kStart);
  bucket.give_back(50);
  EXPECT_NEAR(bucket.remaining(kStart), 70, 1e-6);
  bucket.give_back(500);  // never more than a minute's worth
  EXPECT_EQ(bucket.remaining(kStart), 100);
}

TEST(RateBucket, ANewRateCountsFromNow) {
  RateBucket bucket;
  bucket.set_rate(100);
  bucket.take(50, kStart);
  bucket.set_rate(10);
  EXPECT_NEAR(bucket.remaining(kStart), 5, 1e-6);  // the same half
  bucket.set_rate(0);
  EXPECT_EQ(bucket.take(1e9, kStart), 0);
}

TEST(RateBucket, ThreadsTogetherTakeNoMoreThanThereIs) {
  RateBucket bucket;
  bucket.set_rate(1000);
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) taken += bucket.take(1, kStart) == 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken, 1000);
}

TEST(LatencyWindow, CountsWhatIsInsideTheWindow) {
  LatencyWindow window(10 * kSecond);
  EXPECT_EQ(window.read(kStart).count, 0);
  for (int i = 0; i < 100; ++i) window.add(kStart + i * 100 * kMs, 100 * kMs);
  const auto whole = window.read(kStart + 10 * kSecond - 1);
  EXPECT_EQ(whole.count, 100);
  EXPECT_NEAR(whole.per_second, 10, 0.01);
  EXPECT_NEAR(whole.mean_ms, 100, 1e-9);
  EXPECT_GE(whole.p95_ms, 100);
  EXPECT_LE(whole.p95_ms, 100 * 1.1);
  EXPECT_EQ(window.read(kStart + 15 * kSecond).count, 40);
  EXPECT_EQ(window.read(kStart + 100 * kSecond).count, 0);
}

TEST(LatencyWindow, TheSlowestTwentiethIsLeftOutOfP95) {
  LatencyWindow window(10 * kSecond);
  for (int i = 0; i < 100; ++i) window.add(kStart, (i < 95 ? 50 : 5000) * kMs);
  EXPECT_LE(window.read(kStart).p95_ms, 50 * 1.1);
  window.add(kStart, 5000 * kMs);
  EXPECT_GE(window.read(kStart).p95_ms, 5000);
}

TEST(LatencyWindow, WhatIsToldLateTakesNothingFromTheNewest) {
  LatencyWindow window(10 * kSecond);
  for (int i = 0; i < 5; ++i) window.add(kStart + 10 * kSecond, 100 * kMs);
  window.add(kStart, 100 * kMs);  // a whole window late
  EXPECT_EQ(window.read(kStart + 10 * kSecond).count, 5);
}

TEST(LimitByRule, IsTheFormula) {
  const auto limit = [](double per_second, double p95_ms) {
    return limit_by_rule(LimitSettings(), {1, per_second, p95_ms, p95_ms});
  };
  EXPECT_EQ(limit(100, 100), 80);
  EXPECT_EQ(limit(101, 200), 80);  // floor(80.8)
  EXPECT_EQ(limit(100, 450), 75);
  EXPECT_EQ(limit(100, 100000), 10);
  EXPECT_EQ(limit(5, 0), 10);
  EXPECT_EQ(limit(1e7, 0), 1024);
}

TEST(LimitByRule, ItsNumbersAreSettings) {
  LimitSettings slow;
  slow.min = 2, slow.qps_share = 2, slow.target_ms = 3000, slow.ms_per_place = 500;
  EXPECT_EQ(limit_by_rule(slow, {1, 20, 0, 2900}), 40);
  EXPECT_EQ(limit_by_rule(slow, {1, 20, 0, 5000}), 36);
}

TEST(GradientLimit, GrowsWhileLatencyStaysAndFallsWhenItRises) {
  LimitSettings settings;
  GradientLimit limit;
  int places = 0;
  for (int i = 0; i < 60; ++i) places = limit.update(settings, 100, places);
  EXPECT_GT(places, 40);
  const int before = places;
  EXPECT_EQ(limit.update(settings, 100, 0), before) << "half empty: nothing is learned";
  for (int i = 0; i < 30; ++i) places = limit.update(settings, 1000, places);
  EXPECT_LT(places, before / 3);
  EXPECT_GE(places, settings.min);
  for (int i = 0; i < 60; ++i) places = limit.update(settings, 100, places);
  EXPECT_GT(places, before / 2);
}

// A queue in front of a server of fixed pace: 20 first tokens a second, each after 50 ms and its turn.
TEST(GradientLimit, HoldsTheQueueOfAnOverloadedServerNearWhatItNeeds) {
  LimitSettings settings;
  settings.min = 1;
  GradientLimit limit;
  int places = limit.update(settings, 0, 0), most = 0;
  for (int second = 0; second < 300; ++second) {
    const int waiting = second < 20 ? 1 : places;  // then more come than can be served
    places = limit.update(settings, 50.0 + 50.0 * waiting, waiting);
    most = std::max(most, second < 20 ? 0 : places);
  }
  EXPECT_LT(most, 25);
  EXPECT_GE(places, 1);
}

TEST(Calibrated, FallsAtOnceToWhatIsDeliveredAndComesBackSlowly) {
  EXPECT_EQ(calibrated(1, 0.5, false, 1), 1);
  EXPECT_EQ(calibrated(1, 0.5, true, 1), 0.5);
  EXPECT_EQ(calibrated(1, 0.001, true, 1), 0.1);
  EXPECT_EQ(calibrated(1, 2, true, 1), 1);
  EXPECT_NEAR(calibrated(0.5, 0, false, 1), 0.525, 1e-12);
  EXPECT_NEAR(calibrated(0.1, 0, false, 10), 0.1 * 1.629, 1e-4) << "as fast where it is seldom asked";
}

class AdmissionTest : public testing::Test {
 protected:
  void make(int keys = 2) { admission_ = std::make_shared<Admission>(settings_, keys); }
  std::optional<Refusal> ask(Ask wish, TimeNs now = kStart) {
    Permit permit;
    auto refused = admission_->admit(wish, now, permit);
    if (!refused) permits_.push_back(std::move(permit));
    return refused;
  }
  TrafficSettings settings_;
  std::shared_ptr<Admission> admission_;
  std::vector<Permit> permits_;
};

TEST_F(AdmissionTest, LetsAllInUnlessTold) {
  make();
  for (int i = 0; i < 5000; ++i) EXPECT_FALSE(ask({1, Lane::batch, 10000, 256}));
  EXPECT_EQ(admission_->requests(1, Lane::batch, kStart).limit, 0);
}

TEST_F(AdmissionTest, EachKeyHasItsOwnRateAndIsToldWhenItIsBack) {
  settings_.keys = {2, 0};
  make();
  EXPECT_FALSE(ask({1}));
  EXPECT_FALSE(ask({1}));
  const auto refused = ask({1});
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->own_rate);
  EXPECT_EQ(refused->retry_after_s, 30);
  EXPECT_FALSE(ask({2})) << "another key";
  EXPECT_TRUE(ask({1}, kStart + 29 * kSecond));
  EXPECT_FALSE(ask({1}, kStart + refused->retry_after_s * kSecond));
}

TEST_F(AdmissionTest, TokensAreChargedAsExpectedAndSettledAtTheEnd) {
  settings_.keys = {0, 1000};
  make();
  ASSERT_FALSE(ask({1, Lane::standard, 500, 256}));
  const auto refused = ask({1, Lane::standard, 500, 256});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s, 31);  // 512 missing at 1000 a minute
  permits_[0].first_token(kStart);
  permits_[0].generated(20);
  permits_.clear();
  EXPECT_NEAR(admission_->tokens(1, Lane::standard, kStart).remaining, 480, 1e-3);
}

TEST_F(AdmissionTest, WhatWasRefusedIsNotCharged) {
  settings_.keys = {10, 100};
  settings_.lanes[size_t(Lane::batch)] = {1, 0};
  make();
  ASSERT_FALSE(ask({1, Lane::batch, 10, 0}));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(ask({1, Lane::batch, 10, 0}));
  EXPECT_NEAR(admission_->requests(1, Lane::standard, kStart).remaining, 9, 1e-3);
  EXPECT_NEAR(admission_->tokens(1, Lane::standard, kStart).remaining, 90, 1e-3);
}

TEST_F(AdmissionTest, UnderLoadBatchIsRefusedFirstThenStandardThenInteractive) {
  settings_.limit.mode = "rule";  // nothing measured yet: the least, 10 places
  make();
  ASSERT_EQ(admission_->limit(), 10);
  int let_in[kLanes] = {};
  for (const Lane lane : {Lane::batch, Lane::standard, Lane::interactive})
    while (!ask({0, lane})) ++let_in[int(lane)];
  EXPECT_EQ(let_in[int(Lane::batch)], 5);
  EXPECT_EQ(let_in[int(Lane::standard)], 3);
  EXPECT_EQ(let_in[int(Lane::interactive)], 2);
  // The other way round: who is let in last keeps the others' places.
  permits_.clear();
  EXPECT_EQ(admission_->waiting(), 0);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(ask({0, Lane::interactive}));
  EXPECT_TRUE(ask({0, Lane::batch}));
}

TEST_F(AdmissionTest, APlaceIsFreeWithTheFirstTokenNotWithTheLast) {
  settings_.limit.mode = "rule";
  make();
  while (!ask({0, Lane::interactive})) {
  }
  permits_[0].first_token(kStart + kSecond);
  EXPECT_FALSE(ask({0, Lane::interactive}));
  EXPECT_TRUE(ask({0, Lane::interactive}));
  permits_.clear();
  EXPECT_EQ(admission_->waiting(), 0);
}

TEST_F(AdmissionTest, AnswersAreCutBeforeRequestsAreRefused) {
  settings_.limit.mode = "rule";
  settings_.degrade = {64, 0.5};
  make();
  std::vector<int> cut;
  while (!ask({0, Lane::batch})) cut.push_back(permits_.back().max_tokens());
  EXPECT_EQ(cut, (std::vector<int>{0, 0, 0, 64, 64}));
}

TEST_F(AdmissionTest, TheLimitFollowsWhatIsMeasured) {
  settings_.limit.mode = "rule";
  make();
  TimeNs now = kStart;
  for (int i = 0; i < 1000; ++i, now += 10 * kMs) {
    ASSERT_FALSE(ask({0, Lane::interactive}, now));
    permits_.back().first_token(now + 5 * kMs);
    permits_.clear();
  }
  EXPECT_NEAR(admission_->limit(), 80, 10);
  settings_.limit.mode = "off";
  admission_->configure(settings_);
  EXPECT_EQ(admission_->limit(), 0);
}

TEST_F(AdmissionTest, APaceThatIsLongAgoSaysNothing) {
  settings_.limit.mode = "rule";
  make();
  TimeNs now = kStart;
  for (int i = 0; i < 1000; ++i, now += 10 * kMs) {
    ASSERT_FALSE(ask({0, Lane::interactive}, now));
    permits_.back().first_token(now);
    permits_.clear();
  }
  ASSERT_GT(admission_->limit(), 60);
  now += 60 * kSecond;
  int let_in = 0;
  while (!ask({0, Lane::interactive}, now)) ++let_in;
  EXPECT_EQ(let_in, 10);
}

TEST_F(AdmissionTest, WhoAsksACanaryIsNoLoadOfThisPool) {
  settings_.limit.mode = "rule";
  settings_.keys = {100, 0};
  make();
  for (int i = 0; i < 50; ++i) ASSERT_FALSE(ask({1, Lane::batch, 0, 0, false}));
  EXPECT_EQ(admission_->waiting(), 0);
  EXPECT_NEAR(admission_->requests(1, Lane::batch, kStart).remaining, 50, 1e-3) << "its rate is charged";
  // Nor is how long it takes there.
  for (Permit& permit : permits_) permit.first_token(kStart + 60 * kSecond);
  EXPECT_FALSE(ask({1}, kStart + 61 * kSecond));
  EXPECT_EQ(admission_->first_tokens_s(), 0);
}

TEST_F(AdmissionTest, WhoComesBackFromACanaryTakesAPlaceAndIsChargedOnce) {
  settings_.limit.mode = "rule";
  settings_.limit.min = settings_.limit.max = 2;
  settings_.keys = {100, 0};
  make();
  for (int i = 0; i < 3; ++i) ASSERT_FALSE(ask({1, Lane::interactive, 0, 0, false}));
  EXPECT_FALSE(permits_[0].take_place(kStart));
  EXPECT_FALSE(permits_[1].take_place(kStart));
  const auto refused = permits_[2].take_place(kStart);
  ASSERT_TRUE(refused);
  EXPECT_STREQ(refused->code, "overloaded");
  EXPECT_EQ(admission_->waiting(), 2);
  EXPECT_NEAR(admission_->requests(1, Lane::interactive, kStart).remaining, 97, 1e-3);
  permits_.clear();
  EXPECT_EQ(admission_->waiting(), 0);
}

TEST_F(AdmissionTest, NewRatesCountFromTheNextRequest) {
  make();
  EXPECT_FALSE(ask({1}));
  settings_.keys = {1, 0};
  admission_->configure(settings_);
  EXPECT_FALSE(ask({1}));
  EXPECT_TRUE(ask({1}));
}

TEST_F(AdmissionTest, RatesFollowWhatIsDeliveredIfWanted) {
  settings_.recalibrate = true;
  settings_.lanes[size_t(Lane::standard)] = {0, 600000};
  make();
  TimeNs now = kStart;
  for (int i = 0; i < 120; ++i, now += kSecond) {  // 1000 tokens a second, and slow
    if (ask({0, Lane::standard, 1000, 0}, now)) continue;
    permits_.back().first_token(now + kSecond);
    permits_.clear();
  }
  EXPECT_NEAR(admission_->tokens(0, Lane::standard, now).limit, 60000, 6000);
}

TEST_F(AdmissionTest, SoDoRatesOfRequestsAloneAndTheyComeBackAsTimeGoesOn) {
  settings_.recalibrate = true;
  settings_.lanes[size_t(Lane::standard)] = {600, 0};
  make();
  TimeNs now = kStart;
  for (int i = 0; i < 60;
       ++i, now += kSecond) {  // two first tokens a second of ten that are promised, and slow
    for (int k = 0; k < 2; ++k) {
      if (ask({0, Lane::standard}, now)) continue;
      permits_.back().first_token(now + kSecond);
    }
    permits_.clear();
  }
  EXPECT_NEAR(admission_->requests(0, Lane::standard, now).limit, 120, 20);
  now += 120 * kSecond;
  EXPECT_FALSE(ask({0, Lane::standard}, now));
  EXPECT_EQ(admission_->requests(0, Lane::standard, now).limit, 600) << "nobody had to ask meanwhile";
}

}  // namespace
}  // namespace sluice
