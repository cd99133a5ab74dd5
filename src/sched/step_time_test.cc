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
    const double prompt = chunk * (kH200.prompt_row + kH200.pair * (first + chunk / 2.0));
    return TimeNs(factor *
                  (kH200.fixed + streams * (kH200.one_token + kH200.context * context) + (chunk ? prompt : 0)));
  }
  void note(int streams, int context, int chunk, int first, double factor = 1) {
    const TimeNs took = step(streams, context, chunk, first, factor);
    model_.note(plan_, took);
  }
  double expected(int streams, int context, int chunk, int first) const {
    return model_.fixed() + streams * model_.one_token(context) + model_.prompt(first, chunk);
  }
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
}

// -- What streams see
// ------------------------------------------------------------------------------------------

Policy on_card() { return {.max_running = 256, .step_tokens = 2048}; }

struct Measured {
  double requests_s = 0, gap_p50_ms = 0, gap_p99_ms = 0;
};

// A closed loop of `streams`, `requests` in all.
Measured closed_loop(VirtualServer& server, int streams, int requests, int prompt, int answer) {
  int left = requests - streams;
  for (int i = 0; i < streams; ++i) server.submit({.prompt = prompt, .answer = answer});
  server.on_end = [&](const VirtualServer::Outcome&) {
    if (left-- > 0) server.submit({.at = server.now(), .prompt = prompt, .answer = answer});
  };
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
  EXPECT_LE(m.gap_p99_ms, 40);
  EXPECT_GE(m.requests_s, 3.3);
}

TEST(Streams, APromptAloneGetsWholeSteps) {
  VirtualServer server(kH200, on_card(), 40000, 40000);
  const int chunk = on_card().step_tokens, prompt = 16 * chunk;
  for (int i = 0; i < 8; ++i)
    server.submit({.at = i, .prompt = 512, .answer = 100});  // step times become known
  server.submit({.at = TimeNs(20e9), .prompt = prompt, .answer = 1});
  double alone = 0;
  for (int first = 0; first < prompt; first += chunk)
    alone += kH200.fixed + chunk * (kH200.prompt_row + kH200.pair * (first + chunk / 2.0));
  EXPECT_LE(double(server.run().back().latency()), 1.05 * alone);
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
