// What is odd in a stream of tokens, and what is not.
#include "observe/stream_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sluice {
namespace {

class StreamWatchTest : public testing::Test {
 protected:
  // Like text: an id, 4 ms apart give or take a little, nothing repeated.
  TokenSeen usual() {
    TokenSeen t;
    t.id = int32_t(49'000 * std::pow(uniform_(random_), 8));
    t.interval_ms = stream_.tokens() == 0 ? -1 : 4 + 0.4 * uniform_(random_);
    t.kv_hit = stream_.tokens() == 0 ? 0 : 0.98f;
    t.chars = 4;
    return t;
  }
  void push(const TokenSeen& t) {
    for (const OddToken& odd : stream_.push(t, lane_)) odd_.push_back(odd);
  }
  void push_usual(int count) {
    for (int i = 0; i < count; ++i) push(usual());
  }
  std::vector<AnomalyKind> kinds() const {
    std::vector<AnomalyKind> out;
    for (const OddToken& odd : odd_) out.push_back(odd.kind);
    return out;
  }
  using Kinds = std::vector<AnomalyKind>;

  std::mt19937 random_{7};
  std::uniform_real_distribution<double> uniform_{0, 1};
  LaneUsual lane_;
  StreamWatch stream_;
  std::vector<OddToken> odd_;
};

TEST_F(StreamWatchTest, TextIsNotOdd) {
  push_usual(5000);
  EXPECT_EQ(kinds(), Kinds{});
}

TEST_F(StreamWatchTest, ATokenThatComesLateByItsLanesMeanAndDeviationIsSlow) {
  push_usual(64);
  TokenSeen late = usual();
  late.interval_ms = 40;
  push(late);
  ASSERT_EQ(kinds(), Kinds{AnomalyKind::slow_token});
  EXPECT_EQ(odd_[0].value, 40);
  EXPECT_NEAR(odd_[0].usual, 4.2, 0.1);
  EXPECT_GT(stream_.z(), 100);
  push_usual(1);
  EXPECT_LT(std::abs(stream_.z()), 6);
}

TEST_F(StreamWatchTest, RegularLanesDoNotMakeMuchOfLittle) {
  for (int i = 0; i < 64; ++i) {
    TokenSeen t = usual();
    t.interval_ms = 4;
    push(t);
  }
  for (const double ms : {4.5, 11.9, 13.9}) {  // below three times, below 10 ms more
    TokenSeen t = usual();
    t.interval_ms = ms;
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{});
}

TEST_F(StreamWatchTest, NothingIsSlowWhileALaneIsNotKnown) {
  push_usual(20);
  TokenSeen late = usual();
  late.interval_ms = 400;
  push(late);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(stream_.z(), 0);
}

TEST_F(StreamWatchTest, WhatIsSlowForLongBecomesUsual) {
  push_usual(256);
  for (int i = 0; i < 2000; ++i) {
    TokenSeen t = usual();
    t.interval_ms = 40;
    push(t);
  }
  const size_t said = odd_.size();
  for (int i = 0; i < 100; ++i) {
    TokenSeen t = usual();
    t.interval_ms = 40;
    push(t);
  }
  EXPECT_GT(said, 1u);
  EXPECT_EQ(odd_.size(), said);
}

TEST_F(StreamWatchTest, WhatIsComputedAgainIsLittleReuse) {
  push_usual(10);
  TokenSeen t = usual();
  t.kv_hit = 0.02f;
  push(t);
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::low_reuse});
}

TEST_F(StreamWatchTest, APromptThatIsNotFoundWhereMostAreIsLittleReuse) {
  for (int i = 0; i < 20; ++i) {
    TokenSeen first = usual();
    first.kv_hit = i == 19 ? 0.0f : 0.9f;
    StreamWatch another;
    for (const OddToken& odd : another.push(first, lane_)) odd_.push_back(odd);
  }
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::low_reuse});
}

TEST_F(StreamWatchTest, ControlCharactersInEachSixthPlaceAreTooMany) {
  push_usual(40);
  for (int i = 0; i < 12; ++i) {
    TokenSeen t = usual();
    t.chars = t.control = 2;
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::control_text}) << "said once";
}

TEST_F(StreamWatchTest, JumpsAreJudgedByTheStreamsOwn) {
  push_usual(80);
  for (int i = 0; i < 20; ++i) {
    TokenSeen t = usual();
    t.id = i % 2 ? 48'900 - 11 * i : 7 * i;
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::id_jumps});
  EXPECT_GT(odd_[0].value, odd_[0].usual + 2048);
}

TEST_F(StreamWatchTest, AFewIdsAgainAndAgainAreALoop) {
  push_usual(10);
  for (int i = 0; i < 40; ++i) {
    TokenSeen t = usual();
    t.id = 100 + i % 3;
    push(t);
  }
  ASSERT_EQ(kinds(), Kinds{AnomalyKind::repetition});
  EXPECT_EQ(odd_[0].value, 3) << "the period";
}

TEST_F(StreamWatchTest, ThreeRoundsOfALongPeriodAreNoLoopYet) {
  for (int i = 0; i < 30 * 4 - 1; ++i) {
    TokenSeen t = usual();
    t.id = 100 + i % 30;
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{});
  TokenSeen last = usual();
  last.id = 129;
  push(last);
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::repetition});
}

TEST_F(StreamWatchTest, LogitsThatAreNoneAreSaidOnce) {
  push_usual(3);
  for (int i = 0; i < 5; ++i) {
    TokenSeen t = usual();
    t.logits = LogitsState::nan;
    push(t);
  }
  TokenSeen flat = usual();
  flat.logits = LogitsState::flat;
  push(flat);
  EXPECT_EQ(kinds(), (Kinds{AnomalyKind::nan_logits, AnomalyKind::flat_logits}));
}

TEST_F(StreamWatchTest, AModelThatIsSuddenlyUnsureIsJudgedByItsStream) {
  for (int i = 0; i < 80; ++i) {
    TokenSeen t = usual();
    t.peak = float(0.2 + 0.8 * uniform_(random_));
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{});
  for (int i = 0; i < 8; ++i) {
    TokenSeen t = usual();
    t.peak = 1e-4f;
    push(t);
  }
  EXPECT_EQ(kinds(), Kinds{AnomalyKind::sudden_entropy});
}

TEST_F(StreamWatchTest, GreedyIdsThatWereNotTheLikeliestAreRememberedForAWhile) {
  TokenSeen t = usual();
  t.logits = LogitsState::unlikely;
  push(t);
  EXPECT_TRUE(stream_.saw_unlikely());
  push_usual(40);
  EXPECT_FALSE(stream_.saw_unlikely());
}

TEST(Baseline, IsTheMeanAndDeviationOfWhatCameLately) {
  Baseline b;
  for (const double x : {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0}) b.add(x);
  EXPECT_DOUBLE_EQ(b.mean(), 5);
  EXPECT_DOUBLE_EQ(b.deviation(), 2);
  for (int i = 0; i < 4000; ++i) b.add(100);
  EXPECT_NEAR(b.mean(), 100, 0.1);
  EXPECT_LT(b.deviation(), 1);
}

}  // namespace
}  // namespace sluice
