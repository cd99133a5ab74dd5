// What is learned of step times, what the budget makes of it, and what streams then see (on a virtual clock).
#include "sched/step_time.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "sched/virtual_server.h"

namespace sluice {
namespace {

constexpr double kMs = 1e6;

class Learning : public testing::Test {
 protected:
  // A step of `streams` at `context`, and a chunk of a prompt.
  TimeNs step(int streams, int context, int chunk, int first, double factor = 1) {
    plan_.reset();
    for (int i = 0; i < streams; ++i) plan_.entries.push_back({nullptr, context, 1, true});
    if (chunk) plan_.entries.push_back({nullptr, first, chunk, false});
    const double prompt = chunk ? device_.prompt(first, chunk) : 0;
    return TimeNs(factor *
                  (device_.fixed + streams * (device_.one_token + device_.context * context) + prompt));
  }
  void note(int streams, int context, int chunk, int first, double factor = 1) {
    const TimeNs took = step(streams, context, chunk, first, factor);
    model_.note(plan_, took);
  }
  double expected(int streams, int context, int chunk, int first) const {
    return model_.fixed() + streams * model_.one_token(context) + model_.prompt(first, chunk);
  }
  DeviceTimes device_ = kH200;
  StepPlan plan_;
  StepTime model_;
};

TEST_F(Learning, KnowsNothingAtFirstAndCountsRows) {
  EXPECT_FALSE(model_.known());
  EXPECT_EQ(model_.prompt(100, 7), 7);
  EXPECT_EQ(model_.prompt_tokens(5.5, 0, 100), 5);
  for (int i = 0; i < 50; ++i) note(8, 600, 0, 0);
  EXPECT_FALSE(model_.known()) << "no prompt was seen";
}

TEST_F(Learning, FitsWhatItSeesWithinAFewPerCent) {
  std::mt19937 random(1);
  const auto noise = [&] { return 0.97 + 0.06 * double(random() % 1000) / 1000; };
  for (int i = 0; i < 400; ++i)
    note(1 + int(random() % 100), 200 + int(random() % 4000), i % 3 ? int(16 + random() % 700) : 0,
         int(random() % 4000), noise());
  for (const int streams : {4, 32, 100})
    for (const int chunk : {0, 128, 640}) {
      const double truth = double(step(streams, 1000, chunk, 1000));
      EXPECT_NEAR(expected(streams, 1000, chunk, 1000), truth, 0.06 * truth) << streams << " + " << chunk;
    }
}

TEST_F(Learning, WhatIsNotSeenForLongIsNotForgotten) {
  for (int i = 0; i < 60; ++i) note(8, 600, i % 2 ? 256 : 0, 0);
  const double before = model_.prompt(0, 256);
  for (int i = 0; i < 5000; ++i) note(8, 600, 0, 0);
  EXPECT_NEAR(model_.prompt(0, 256), before, 0.1 * before);
}

TEST_F(Learning, OneStallMovesLittleAndASlowerDeviceIsBelieved) {
  for (int i = 0; i < 60; ++i) note(8, 600, i % 2 ? 256 : 0, 0);
  const double before = expected(8, 600, 256, 0);
  note(8, 600, 256, 0, 1000);
  EXPECT_NEAR(expected(8, 600, 256, 0), before, 0.25 * before);
  for (int i = 0; i < 150; ++i) note(8, 600, i % 2 ? 256 : 0, 0, 2);
  EXPECT_NEAR(expected(8, 600, 256, 0), 2 * before, 0.2 * before);
}

TEST_F(Learning, TokensOfATimeAreThoseThatTakeIt) {
  for (int i = 0; i < 200; ++i) note(8, 600, i % 2 ? 100 + i : 0, i * 20);
  for (const int first : {0, 5000, 30000}) {
    const int tokens = model_.prompt_tokens(10 * kMs, first, 4096);
    EXPECT_LE(model_.prompt(first, tokens), 10 * kMs);
    EXPECT_GT(model_.prompt(first, tokens + 1), 10 * kMs);
  }
  EXPECT_EQ(model_.prompt_tokens(-1, 0, 100), 0);
  EXPECT_EQ(model_.prompt_tokens(1e12, 0, 100), 100);
  EXPECT_EQ(model_.prompt_tokens(std::numeric_limits<double>::infinity(), 0, 100), 100);
}

// A device that takes a chunk for as many rows as a tile has, so that it costs by its context.
TEST_F(Learning, KnowsWhatAChunkCostsByItsContext) {
  device_.tile_rows = 128;
  std::mt19937 random(4);
  for (int i = 0; i < 600; ++i) {
    const int chunk = 8 + int(random() % 300), first = int(random() % 32000);
    note(16, 600, i % 4 ? chunk : 0, first, 0.98 + 0.04 * double(random() % 1000) / 1000);
  }
  for (const int first : {500, 8000, 30000}) {
    for (const int chunk : {32, 64, 250}) {
      const double truth = double(step(16, 600, chunk, first));
      EXPECT_NEAR(expected(16, 600, chunk, first), truth, 0.3 * truth) << chunk << " rows after " << first;
    }
    EXPECT_GT(model_.prompt_context(first), 0);
    const double time = model_.prompt_context(first) + 3 * kMs;
    const int tokens = model_.prompt_tokens(time, first, 256);
    EXPECT_LE(model_.prompt(first, tokens), time);
    EXPECT_GT(model_.prompt(first, tokens + 1), time);
  }
  EXPECT_EQ(model_.prompt_tokens(0.9 * model_.prompt_context(30000), 30000, 256), 0)
      << "no time but for its keys";
}

// One prompt after the other, each in chunks of the same length: rows, pairs and contexts grow together, and
// only their sum can be known. It is, wherever the next step lies near the last ones.
TEST_F(Learning, TermsThatGrowTogetherGiveTheRightSum) {
  for (const int tile_rows : {1, 128}) {
    device_.tile_rows = tile_rows;
    model_ = {};
    for (int i = 0; i < 20; ++i) note(16, 600, i % 2 ? 100 : 0, 0);
    for (int round = 0; round < 3; ++round)
      for (int first = 0; first < 32000; first += 100) {
        note(16, 600, 100, first);
        if (first < 2000) continue;
        const double truth = double(step(16, 600, 100, first + 200));
        ASSERT_NEAR(expected(16, 600, 100, first + 200), truth, 0.05 * truth) << first;
      }
  }
}

// Whatever it is shown: no coefficient is negative or no number.
TEST_F(Learning, StaysInBoundsWhateverTheTimes) {
  std::mt19937 random(5);
  const auto check = [&] {
    for (const int first : {0, 1000, 100000}) {
      ASSERT_TRUE(model_.fixed() >= 0 && model_.one_token(first) >= 0 && model_.prompt_context(first) >= 0);
      ASSERT_GE(model_.prompt(first, 100), model_.prompt_context(first));
      ASSERT_LT(model_.prompt(first, 100), 1e18);
      const int tokens = model_.prompt_tokens(5 * kMs, first, 512);
      ASSERT_TRUE(tokens >= 0 && tokens <= 512);
    }
  };
  for (int i = 0; i < 3000; ++i) {  // times that have nothing to do with the work
    plan_.reset();
    for (int n = int(random() % 20); n > 0; --n)
      plan_.entries.push_back({nullptr, int(random() % 100000), 1, true});
    if (random() % 2)
      plan_.entries.push_back({nullptr, int(random() % 100000), 2 + int(random() % 5000), false});
    model_.note(plan_, TimeNs(1) << (random() % 50));
    check();
  }
  model_ = {};
  for (int i = 0; i < 2000; ++i) {  // always the same step
    note(4, 100, 100, 1000);
    check();
  }
  EXPECT_NEAR(expected(4, 100, 100, 1000), double(step(4, 100, 100, 1000)),
              0.02 * double(step(4, 100, 100, 1000)));
}

TEST_F(Learning, DoesNotLeapFromShortPromptsToLongOnes) {
  for (int i = 0; i < 50; ++i) note(8, 600, i % 2 ? 32 : 0, 0, i % 2 ? 0.2 : 1);  // as if prompts cost nothing
  EXPECT_EQ(model_.prompt_tokens(1000 * kMs, 0, 4096), 64);
  note(8, 600, 128, 0);
  EXPECT_LE(model_.prompt_tokens(1000 * kMs, 0, 4096), 256);
  EXPECT_EQ(model_.prompt_tokens(std::numeric_limits<double>::infinity(), 0, 4096), 4096);
}

TEST_F(Learning, StepsThatSayNothingAreNotCounted) {
  model_.note(plan_, 5);
  note(1, 1, 1, 1);
  model_.note(plan_, 0);
  model_.note(plan_, -5);
  EXPECT_FALSE(model_.known());
}

TEST(StepLimit, GrowsWithThePromptsThatWaitAndTheirShare) {
  EXPECT_EQ(step_limit_ns({4 * kMs, 16, 1}, 0), 6.8 * kMs) << "one long prompt among streams";
  EXPECT_EQ(step_limit_ns({4 * kMs, 6, 2}, 0), 6.8 * kMs);
  EXPECT_NEAR(step_limit_ns({7 * kMs, 114, 14}, 0), (7 + 7 * 14 * 14 / 128.0) * kMs, 1);
  EXPECT_EQ(step_limit_ns({8 * kMs, 16, 16}, 0), kLongestStepNs) << "half of them wait";
  EXPECT_EQ(step_limit_ns({60 * kMs, 16, 16}, 0), 60 * kMs * 1.7) << "a slow device";
  EXPECT_EQ(step_limit_ns({8 * kMs, 16, 16}, 12'000'000), 12 * kMs) << "a target";
  EXPECT_EQ(step_limit_ns({4 * kMs, 16, 2, 250 * kMs}, 0), 6.8 * kMs) << "no queue to speak of";
  EXPECT_EQ(step_limit_ns({8 * kMs, 16, 16, 650 * kMs}, 0), 50 * kMs) << "a queue";
  EXPECT_EQ(step_limit_ns({8 * kMs, 16, 16, 1e12}, 0), kLongestQueuedStepNs);
  EXPECT_EQ(step_limit_ns({60 * kMs, 16, 16, 1e12}, 0), 60 * kMs * 1.7) << "never less than without";
  EXPECT_EQ(step_limit_ns({8 * kMs, 16, 16, 1e12}, 12'000'000), 12 * kMs) << "a target";
}

// -- What streams see
// ------------------------------------------------------------------------------------------

Policy on_card() { return {.max_running = 256, .step_tokens = 2048}; }

struct Measured {
  double requests_s = 0, gap_p50_ms = 0, gap_p99_ms = 0;
};

// A closed loop of `streams`, `requests` in all.
Measured closed_loop(VirtualServer& server, int streams, int requests, int prompt, int answer) {
  for (int i = 0; i < requests; ++i) server.submit({.prompt = prompt, .answer = answer});
  server.keep_in_flight(streams);
  std::vector<TimeNs> gaps;
  TimeNs end = 0;
  for (const auto& o : server.run()) {
    gaps.insert(gaps.end(), o.gaps.begin(), o.gaps.end());
    end = std::max(end, o.end);
  }
  return {requests / seconds(end), ms(percentile(gaps, 0.5)), ms(percentile(gaps, 0.99))};
}

TEST(Streams, EightStreamsKeepTheirPace) {
  VirtualServer server(kH200, on_card(), 8192, 20000);
  const Measured m = closed_loop(server, 8, 256, 512, 128);
  EXPECT_LE(m.gap_p99_ms, 7);
  EXPECT_GE(m.requests_s, 12.5);
}

TEST(Streams, AHundredAndTwentyEightLoseNoThroughput) {
  VirtualServer server(kH200, on_card(), 8192, 20000);
  const Measured m = closed_loop(server, 128, 1280, 512, 128);
  EXPECT_LE(m.gap_p99_ms, 40);
  EXPECT_GE(m.requests_s, 53);
}

TEST(Streams, WhereMostWaitForLongPromptsStepsFillTheCard) {
  VirtualServer server(kH200, on_card(), 16384, 40000);
  const Measured m = closed_loop(server, 32, 96, 8192, 256);
  EXPECT_LE(m.gap_p99_ms, 65);  // a queue of seconds lifts the limit
  EXPECT_GE(m.requests_s, 3.65);
}

TEST(Streams, APromptAloneGetsWholeSteps) {
  VirtualServer server(kH200, on_card(), 40000, 40000);
  const int chunk = on_card().step_tokens, prompt = 16 * chunk;
  for (int i = 0; i < 8; ++i)
    server.submit({.at = i, .prompt = 512, .answer = 100});  // step times become known
  server.submit({.at = TimeNs(20e9), .prompt = prompt, .answer = 1});
  double alone = 0;
  for (int first = 0; first < prompt; first += chunk) alone += kH200.fixed + kH200.prompt(first, chunk);
  EXPECT_LE(double(server.run().back().latency()), 1.05 * alone);
}

// Where a chunk of any size takes more than an automatic budget has, by its context, a prompt gets on
// nevertheless: not eight tokens at a time.
TEST(Streams, APromptWhoseContextExceedsTheBudgetGetsOn) {
  DeviceTimes device = kH200;
  device.tile_rows = 256;
  VirtualServer server(device, on_card(), 40000, 40000);
  for (int i = 0; i < 16; ++i) server.submit({.at = i, .prompt = 32, .answer = 2000});
  server.submit({.at = TimeNs(1e9), .prompt = 32000, .answer = 2});
  for (const auto& o : server.run()) {
    if (o.wish.prompt == 32000) {
      EXPECT_LT(ms(o.first - o.wish.at), 7000);
    }
  }
}

// Also where all that was seen before are short prompts.
TEST(Streams, ALongPromptAmongThem) {
  for (const auto& [device, streams, own, prompt] : {std::tuple{kH200, 16, 512, 32000},
                                                     {kH200, 16, 32, 32000},
                                                     {kTwoCores, 16, 512, 7000},
                                                     {kTwoCores, 4, 512, 7000}}) {
    std::vector<TimeNs> gaps[2];
    for (const bool disturbed : {false, true}) {
      Policy policy = on_card();
      policy.step_tokens = 512;
      VirtualServer server(device, policy, 40000, 40000);
      for (int i = 0; i < streams; ++i) server.submit({.at = i, .prompt = own, .answer = 700});
      if (disturbed)
        server.submit(
            {.at = TimeNs(device.prompt_row * 512 * streams * 1.5 + 1e9), .prompt = prompt, .answer = 2});
      for (const auto& o : server.run())
        if (o.wish.prompt == own)
          gaps[disturbed].insert(gaps[disturbed].end(), o.gaps.begin() + 100, o.gaps.end());
    }
    EXPECT_LT(percentile(gaps[1], 0.99), 2 * percentile(gaps[0], 0.99)) << streams << " streams of " << own;
  }
}

}  // namespace
}  // namespace sluice
