// The breaker on a clock of the test's own; the sequential test and the canary on seeded random outcomes.
#include "server/traffic/canary.h"

#include <gtest/gtest.h>

#include <random>

#include "server/traffic/circuit_breaker.h"
#include "server/traffic/passage.h"

namespace sluice {
namespace {

constexpr TimeNs kSecond = 1'000'000'000, kStart = 1000 * kSecond;
using Pass = CircuitBreaker::Pass;
using State = CircuitBreaker::State;

class BreakerTest : public testing::TestWithParam<BreakerSettings> {
 protected:
  BreakerTest() { breaker_.configure(GetParam()); }
  const BreakerSettings& s() const { return GetParam(); }
  void open_at(TimeNs now) {
    for (int i = 1; i < s().failures; ++i) EXPECT_FALSE(breaker_.failed(Pass::ordinary, now));
    EXPECT_TRUE(breaker_.failed(Pass::ordinary, now));
  }
  CircuitBreaker breaker_;
};

TEST_P(BreakerTest, OpensAtSoManyFailuresInsideTheWindow) {
  TimeNs now = kStart;
  for (int i = 0; i < 100; ++i, now += s().window_s * kSecond / (s().failures - 1) + kSecond) {
    EXPECT_FALSE(breaker_.failed(Pass::ordinary, now)) << "too far apart";
    EXPECT_EQ(breaker_.enter(now), Pass::ordinary);
  }
  now += 2 * s().window_s * kSecond;
  open_at(now);
  EXPECT_EQ(breaker_.state(), State::open);
  EXPECT_EQ(breaker_.enter(now), Pass::refused);
  EXPECT_EQ(breaker_.opens_in(now), s().open_s * kSecond);
}

TEST_P(BreakerTest, HalfOpenAdmitsOneProbeAndItsSuccessCloses) {
  open_at(kStart);
  const TimeNs later = kStart + s().open_s * kSecond;
  EXPECT_EQ(breaker_.enter(later - 1), Pass::refused);
  EXPECT_EQ(breaker_.enter(later), Pass::probe);
  EXPECT_EQ(breaker_.state(), State::half_open);
  EXPECT_EQ(breaker_.enter(later), Pass::refused);
  EXPECT_EQ(breaker_.enter(later + 1000 * kSecond), Pass::refused) << "one at a time, however long it takes";
  breaker_.succeeded(Pass::probe);
  EXPECT_EQ(breaker_.state(), State::closed);
  EXPECT_FALSE(breaker_.failed(Pass::ordinary, later)) << "old failures are forgotten";
}

TEST_P(BreakerTest, AProbeThatFailsIsFollowedByAnotherAfterTheInterval) {
  open_at(kStart);
  TimeNs now = kStart + s().open_s * kSecond;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(breaker_.enter(now), Pass::probe);
    breaker_.failed(Pass::probe, now);
    EXPECT_EQ(breaker_.enter(now + s().probe_s * kSecond - 1), Pass::refused);
    now += s().probe_s * kSecond;
  }
}

TEST_P(BreakerTest, AProbeWhoseClientLeftSaysNothing) {
  open_at(kStart);
  const TimeNs later = kStart + s().open_s * kSecond;
  EXPECT_EQ(breaker_.enter(later), Pass::probe);
  breaker_.abandoned(Pass::probe);
  EXPECT_EQ(breaker_.enter(later), Pass::probe);
}

TEST_P(BreakerTest, WhoPassedBeforeItOpenedDoesNotCloseIt) {
  open_at(kStart);
  breaker_.succeeded(Pass::ordinary);
  EXPECT_EQ(breaker_.state(), State::open);
}

INSTANTIATE_TEST_SUITE_P(Profiles, BreakerTest, testing::Values(kPatientBreaker, kQuickBreaker));

TEST(Breaker, TheProfilesAreThoseOfTheDocs) {
  EXPECT_EQ(kPatientBreaker.window_s, 60);
  EXPECT_EQ(kPatientBreaker.failures, 5);
  EXPECT_EQ(kQuickBreaker.open_s, 15);
  CircuitBreaker off;
  off.configure(kNoBreaker);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(off.failed(Pass::ordinary, kStart));
}

// Of streams that are alike, looked at after each pair: how many are found different within 2,000.
TEST(SequentialTest, LookingAgainAndAgainMisleadsSeldom) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(5, 0.4);
  const WorseThan test{0, 0.26, 0.01};
  int found = 0;
  for (int run = 0; run < 500; ++run) {
    Moments a, b;
    bool above = false;
    for (int i = 0; i < 2000 && !above; ++i) {
      a.add(normal(random)), b.add(normal(random));
      above = is_above(a, b, test);
    }
    found += above;
  }
  EXPECT_LE(found, 10) << "1 % of 500 were 5; only one side is asked for";
}

TEST(SequentialTest, FindsWhatIsThere) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> usual(5, 0.4), slow(5.5, 0.4);
  int found = 0;
  for (int run = 0; run < 100; ++run) {
    Moments a, b;
    bool above = false;
    for (int i = 0; i < 200 && !above; ++i) {
      a.add(usual(random)), b.add(slow(random));
      above = is_above(a, b, {0.18, 0.26, 0.01});
    }
    found += above;
  }
  EXPECT_GE(found, 95);
}

TEST(SequentialTest, NothingIsSaidOfAHandful) {
  Share well, bad;
  for (int i = 0; i < kLeastObservations - 1; ++i) well.add(false), bad.add(true);
  EXPECT_FALSE(is_above(well, bad, {}));
  well.add(false), bad.add(true);
  EXPECT_TRUE(is_above(well, bad, {}));
  EXPECT_FALSE(is_above(bad, well, {}));
}

class CanaryTest : public testing::Test {
 protected:
  CanaryTest() {
    settings_.upstream = "http://other:1";
    settings_.steps = {"1", "10", "50"};
    settings_.step_requests = 100;
    canary_.configure(settings_);
  }
  Outcome outcome(double error_rate, double first_token_ms) {
    std::uniform_real_distribution<double> unit(0, 1);
    std::lognormal_distribution<double> spread(0, 0.3);
    Outcome o;
    o.failed = unit(random_) < error_rate;
    o.first_token_ms = first_token_ms * spread(random_);
    o.tokens_per_second = 50 * spread(random_);
    return o;
  }
  std::mt19937_64 random_{11};
  CanarySettings settings_;
  Canary canary_;
};

TEST_F(CanaryTest, ItsShareGrowsInStepsWhileItIsNoWorse) {
  std::vector<double> steps;
  for (int i = 0; i < 1000; ++i) {
    if (steps.empty() || steps.back() != canary_.percent()) steps.push_back(canary_.percent());
    canary_.ended(Pool::stable, outcome(0.001, 200));
    canary_.ended(Pool::canary, outcome(0.001, 200));
  }
  EXPECT_EQ(steps, (std::vector<double>{1, 10, 50}));
  EXPECT_FALSE(canary_.rolled_back());
}

TEST_F(CanaryTest, IsRolledBackWhenItFailsMoreOrIsSlower) {
  for (const auto& [errors, first_token_ms, why] :
       {std::tuple{0.2, 200.0, "errors"}, std::tuple{0.0, 400.0, "time to first token"}}) {
    canary_.configure(settings_);
    int answered = 0;
    while (!canary_.rolled_back() && answered < 1000) {
      canary_.ended(Pool::stable, outcome(0, 200));
      canary_.ended(Pool::canary, outcome(errors, first_token_ms));
      ++answered;
    }
    EXPECT_LT(answered, 300) << why;
    EXPECT_EQ(canary_.verdict(), why);
    EXPECT_EQ(canary_.percent(), 0);
    EXPECT_EQ(canary_.choose(Canary::Wish::by_weight, 0), Pool::stable);
    EXPECT_EQ(canary_.choose(Canary::Wish::canary, 0), Pool::stable);
    EXPECT_EQ(canary_.choose(Canary::Wish::always, 0), Pool::canary) << "who looks for the fault";
  }
  canary_.configure(settings_);
  EXPECT_FALSE(canary_.rolled_back());
}

// At one percent the day is quiet, at fifty all are slower: over all together most of the stable pool's answers
// are quick ones, most of the canary's are not.
TEST_F(CanaryTest, ADayThatGrowsBusierIsNotTheCanarysDoing) {
  settings_.steps = {"1", "50"};
  canary_.configure(settings_);
  while (canary_.percent() == 1) {
    for (int i = 0; i < 99; ++i) canary_.ended(Pool::stable, outcome(0, 100));
    canary_.ended(Pool::canary, outcome(0, 100));
  }
  ASSERT_EQ(canary_.percent(), 50);
  for (int i = 0; i < 1000; ++i) {
    canary_.ended(Pool::stable, outcome(0, 400));
    canary_.ended(Pool::canary, outcome(0, 400));
  }
  EXPECT_EQ(canary_.verdict(), "");
}

TEST_F(CanaryTest, WhatAnEarlierOneBeganSaysNothingOfIt) {
  const auto canary = std::make_shared<Canary>();
  settings_.steps = {"50"};
  canary->configure(settings_);
  const auto health = std::make_shared<PoolHealth>(Pool::canary, canary);
  health->breaker.configure(kQuickBreaker);
  const auto fail = [&](std::vector<Passage>& all) {
    Outcome failed;
    failed.failed = true;
    for (Passage& passage : all) passage.ended(failed, kStart);
  };
  std::vector<Passage> before;
  for (int i = 0; i < 100; ++i) before.emplace_back(health, Pass::ordinary);
  for (int i = 0; i < 100; ++i) canary->ended(Pool::stable, {});
  health->start_over();
  fail(before);
  EXPECT_EQ(health->breaker.state(), State::closed);
  EXPECT_FALSE(canary->rolled_back());
  // Nor is another refused since that one was.
  std::vector<Passage> now;
  for (int i = 0; i < 3; ++i) now.emplace_back(health, Pass::ordinary);
  fail(now);
  ASSERT_EQ(health->breaker.state(), State::open);
  health->start_over();
  EXPECT_EQ(health->breaker.enter(kStart), Pass::ordinary);
}

TEST_F(CanaryTest, EqualKeysGoTheSameWayAndSharesAreAsConfigured) {
  settings_.steps = {"30"};
  canary_.configure(settings_);
  int there = 0;
  for (uint64_t sticky = 0; sticky < 10000; ++sticky)
    there += canary_.choose(Canary::Wish::by_weight, sticky) == Pool::canary;
  EXPECT_EQ(there, 3000);
  EXPECT_EQ(canary_.choose(Canary::Wish::canary, 9999), Pool::canary);
  EXPECT_EQ(canary_.choose(Canary::Wish::never, 0), Pool::stable);
}

TEST_F(CanaryTest, HasOnlySoManyAtOnce) {
  settings_.max_in_flight = 2;
  canary_.configure(settings_);
  EXPECT_TRUE(canary_.enter());
  EXPECT_TRUE(canary_.enter());
  EXPECT_FALSE(canary_.enter());
  canary_.leave();
  EXPECT_TRUE(canary_.enter());
}

}  // namespace
}  // namespace sluice
