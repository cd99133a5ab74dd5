// Lanes and tenants: who is next, and what a burst in one lane does to the others (on a virtual clock).
#include "sched/lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <random>

#include "sched/virtual_server.h"
#include "sched/waiting_queue.h"

namespace sluice {
namespace {

class Queue : public testing::Test {
 protected:
  Sequence* add(int prompt, uint32_t tenant = 0, Lane lane = Lane::standard, int answer = 1, TimeNs at = 0) {
    Request r;
    r.prompt.assign(size_t(prompt), 5);
    r.max_tokens = answer;
    r.lane = lane;
    r.tenant = tenant;
    Sequence* s = &sequences_.emplace_back(std::move(r));
    s->order = sequences_.size();
    s->arrived_at = at;
    queue_.add(s);
    return s;
  }
  Sequence* take(Lane lane = Lane::standard) {
    Sequence* s = queue_.next(lane);
    if (!s) return nullptr;
    EXPECT_EQ(queue_.next(lane), s) << "asked again, the answer is the same";
    queue_.remove(s);
    return s;
  }
  WaitingQueue queue_{kDefaultLaneWeights};
  std::deque<Sequence> sequences_;
};

TEST_F(Queue, OneTenantIsServedInOrder) {
  std::vector<Sequence*> order;
  for (int i = 0; i < 20; ++i) order.push_back(add(1 + i * 100));
  for (Sequence* s : order) EXPECT_EQ(take(), s);
  EXPECT_EQ(take(), nullptr);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(Queue, TenantsShareByTokensWhateverTheyAskFor) {
  for (int i = 0; i < 400; ++i) add(1000, 1), add(100, 2), add(99, 3), add(99, 3);
  std::map<uint32_t, int> tokens;
  for (int i = 0; i < 400; ++i) {
    const Sequence* s = take();
    tokens[s->request.tenant] += s->prompt_tokens + 1;
  }
  for (const auto& [tenant, got] : tokens) EXPECT_NEAR(got, tokens[1], 1001 + 512) << "tenant " << tenant;
}

TEST_F(Queue, ANewTenantDoesNotWaitBehindAnothersBacklog) {
  for (int i = 0; i < 1000; ++i) add(500, 1);
  for (int i = 0; i < 50; ++i) take();
  Sequence* newcomer = add(500, 2);
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 3);
    if (take() == newcomer) break;
  }
}

TEST_F(Queue, WhatAnAnswerCameToIsSettled) {
  // Both expect 256 tokens; the answers of 1 come to 2,000.
  std::map<uint32_t, int> served;
  for (int i = 0; i < 2000; ++i) add(10, 1, Lane::standard, 4000), add(10, 2, Lane::standard, 4000);
  for (int i = 0; i < 400; ++i) {
    Sequence* s = take();
    ++served[s->request.tenant];
    const int generated = s->request.tenant == 1 ? 2000 : 256;
    s->ids.resize(size_t(10 + generated));
    queue_.settle(*s);
  }
  EXPECT_NEAR(served[2], served[1] * (2010.0 / 266), 25);
}

TEST_F(Queue, NobodySavesUpAndDebtHasAnEnd) {
  for (int i = 0; i < 500; ++i) {  // alone for long, far more than expected each time
    add(10, 1, Lane::standard, 8000);
    Sequence* s = take();
    s->ids.resize(8010);
    queue_.settle(*s);
  }
  for (int i = 0; i < 300; ++i) add(500, 1), add(500, 2);
  int of_one = 0;
  for (int i = 0; i < 100; ++i) of_one += take()->request.tenant == 1;
  EXPECT_GE(of_one, 50 - WaitingQueue::kMostDebtTokens / 500);
  EXPECT_LE(of_one, 51);
}

TEST_F(Queue, ManyMoreTenantsThanTheTableTellsApart) {
  std::vector<Sequence*> all;
  for (int i = 0; i < 5000; ++i) all.push_back(add(1 + i % 700, uint32_t(i) * 2654435761u));
  for (size_t i = 0; i < all.size(); i += 3) queue_.drop(all[i]);
  int taken = 0;
  while (take()) ++taken;
  EXPECT_EQ(taken, 5000 - 1667);
}

TEST_F(Queue, ABatchTakesTheLanesByWeight) {
  for (int i = 0; i < 200; ++i)
    for (int lane = 0; lane < kLanes; ++lane) add(100, 0, Lane(lane));
  queue_.choose(105, WaitingQueue::kWhenever);
  PerLane<int> of{};
  for (int i = 0; i < 105; ++i) {
    Sequence* s = queue_.next_of_batch();
    ASSERT_EQ(s->waits_as, WaitsAs::chosen);
    ++of[size_t(s->lane())];
    queue_.remove(s);
  }
  EXPECT_NEAR(of[0], 80, 1);
  EXPECT_NEAR(of[1], 20, 1);
  EXPECT_NEAR(of[2], 5, 1);
}

TEST_F(Queue, WhoArrivedTooLateForABatchIsNotChosen) {
  Sequence* early = add(100, 1, Lane::batch, 1, 10);
  add(100, 1, Lane::interactive, 1, 20);
  queue_.choose(1, 15);
  EXPECT_EQ(queue_.next_of_batch(), early);
  queue_.remove(early);
  EXPECT_EQ(queue_.next_of_batch(), nullptr);
}

TEST(LaneShares, AddUpToNoMoreThanThereIs) {
  for (int total : {3, 4, 21, 64, 256}) {
    int sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      EXPECT_GE(lane_share(kDefaultLaneWeights, lane, total), 1);
      sum += lane_share(kDefaultLaneWeights, lane, total);
    }
    EXPECT_LE(sum, total);
  }
  EXPECT_EQ(lane_share(kDefaultLaneWeights, 2, 2), 0) << "too few for one each";
}

// -- Bursts
// ------------------------------------------------------------------------------------------------------

struct Load {
  DeviceTimes device = kH200;
  Policy policy = {.max_running = 64, .step_tokens = 2048, .max_queue = 20000};
  int blocks = 60000;
  double rate_s = 4;  // of interactive requests, Poisson
  int requests = 600, prompt = 512, answer = 128;
  int burst = 0, burst_prompt = 1024, burst_answer = 256;
};

TimeNs interactive_p99(const Load& load, int64_t* preemptions = nullptr) {
  VirtualServer server(load.device, load.policy, 4096, load.blocks);
  std::mt19937 random(7);
  double at = 0;
  for (int i = 0; i < load.requests; ++i) {
    at += -std::log((double(random()) + 1) / 4294967297.0) / load.rate_s * 1e9;
    server.submit({TimeNs(at), load.prompt, load.answer, Lane::interactive, uint32_t(random() % 7)});
  }
  for (int i = 0; i < load.burst; ++i)
    server.submit({TimeNs(5e9), load.burst_prompt, load.burst_answer, Lane::batch, uint32_t(random() % 3)});
  std::vector<TimeNs> latencies;
  for (const auto& o : server.run()) {
    if (o.wish.lane == Lane::interactive) latencies.push_back(o.latency());
    if (preemptions) *preemptions += o.preemptions;
  }
  return percentile(latencies, 0.99);
}

TEST(Burst, DoesNotMoveTheP99OfInteractiveByMoreThanATenth) {
  for (const int burst : {300, 10000}) {
    Load load;
    if (burst > 1000) load.requests = 2500, load.rate_s = 8;
    const TimeNs alone = interactive_p99(load);
    load.burst = burst;
    const TimeNs beside = interactive_p99(load);
    EXPECT_LE(double(beside), 1.1 * double(alone)) << burst;
  }
}

TEST(Burst, NorWhereMemoryIsShort) {
  Load load;
  load.blocks = 1600;  // 25,600 tokens: 20 of the burst's
  const TimeNs alone = interactive_p99(load);
  load.burst = 2000;
  int64_t preemptions = 0;
  const TimeNs beside = interactive_p99(load, &preemptions);
  EXPECT_LE(double(beside), 1.1 * double(alone));
  EXPECT_GT(preemptions, 0) << "nothing had to be given back";
}

TEST(Burst, NorOnTwoCores) {
  Load load;
  load.device = kTwoCores;
  load.policy.step_tokens = 512;
  load.rate_s = 1, load.prompt = 64, load.answer = 64, load.requests = 300;
  load.burst_prompt = 64, load.burst_answer = 32;
  const TimeNs alone = interactive_p99(load);
  load.burst = 500;
  const TimeNs beside = interactive_p99(load);
  EXPECT_LE(double(beside), 1.1 * double(alone));
}

TEST(Burst, OneThatNeedsNearlyAllBlocksIsWaitedForInTheEnd) {
  VirtualServer server(kH200, {.max_running = 32, .step_tokens = 2048, .max_queue = 20000}, 4096, 300);
  for (int i = 0; i < 4000; ++i)
    server.submit({TimeNs(i) * 10'000'000, 256, 64, i % 2 ? Lane::interactive : Lane::standard});
  server.submit({1'000'000'000, 3900, 100, Lane::batch});
  TimeNs first = 0, end = 0;
  for (const auto& o : server.run()) {
    if (o.wish.lane == Lane::batch) first = o.first;
    end = std::max(end, o.end);
  }
  EXPECT_LT(first, end / 2);
}

TEST(Burst, LanesBelowGoOnBesideASaturatedOne) {
  VirtualServer server(kH200, {.max_running = 32, .step_tokens = 2048, .max_queue = 20000}, 4096, 20000);
  for (int i = 0; i < 3000; ++i) server.submit({.prompt = 256, .answer = 64, .lane = Lane::interactive});
  for (const Lane lane : {Lane::standard, Lane::batch})
    for (int i = 0; i < 20; ++i) server.submit({.prompt = 256, .answer = 64, .lane = lane});
  PerLane<TimeNs> last{};
  for (const auto& o : server.run()) last[size_t(o.wish.lane)] = std::max(last[size_t(o.wish.lane)], o.end);
  EXPECT_LT(last[1], last[0] / 4);
  EXPECT_LT(last[2], last[0]);
}

// -- A target for the time between tokens: what lanes below take within it costs those above nothing
// ------------------------------------------------------------------------------------------------------

struct Beside {
  int burst_ended = 0;                // requests of a burst in lane batch, within a minute
  TimeNs first_p99 = 0, gap_p99 = 0;  // of interactive requests: to the first token, between two
};

Beside a_minute_beside(const Load& load) {
  VirtualServer server(load.device, load.policy, 4096, load.blocks);
  std::mt19937 random(7);
  constexpr double kUntil = 60e9, kLearned = 5e9;  // ns; until then step times are being learned
  for (double at = 0; at < kUntil; at += -std::log((double(random()) + 1) / 4294967297.0) / load.rate_s * 1e9)
    server.submit({TimeNs(at), load.prompt, load.answer, Lane::interactive});
  for (int i = 0; i < load.burst; ++i) server.submit({0, load.burst_prompt, load.burst_answer, Lane::batch});
  Beside seen;
  std::vector<TimeNs> first, gaps;
  for (const auto& o : server.run()) {
    if (o.wish.lane == Lane::batch) {
      seen.burst_ended += double(o.end) < kUntil;
    } else if (double(o.wish.at) >= kLearned) {
      first.push_back(o.first - o.wish.at);
      gaps.insert(gaps.end(), o.gaps.begin(), o.gaps.end());
    }
  }
  seen.first_p99 = percentile(first, 0.99), seen.gap_p99 = percentile(gaps, 0.99);
  return seen;
}

void expect_filled(Load load, TimeNs target, double times) {
  const Beside automatic = a_minute_beside(load);
  load.policy.target_itl_ns = target;
  const Beside with_target = a_minute_beside(load);
  EXPECT_GE(with_target.burst_ended, times * automatic.burst_ended);
  EXPECT_LE(double(with_target.gap_p99), 1.15 * double(target)) << "one least chunk may go beyond it";
  EXPECT_LE(with_target.first_p99, 8 * target) << "two steps are under way when a prompt comes";
}

TEST(Target, IsFilledByLanesBelow) {
  Load load;
  load.policy.max_running = 256, load.policy.step_tokens = 2048;
  load.rate_s = 20, load.prompt = load.answer = 64;
  load.burst = 12000, load.burst_prompt = 128, load.burst_answer = 64;
  expect_filled(load, 20'000'000, 8);
}

TEST(Target, IsFilledByLanesBelowOnTwoCores) {
  Load load;
  load.device = kTwoCores;
  load.policy.step_tokens = 512;
  load.rate_s = 2, load.prompt = load.answer = 64;
  load.burst = 400, load.burst_prompt = 128, load.burst_answer = 64;
  expect_filled(load, 50'000'000, 1.4);
}

}  // namespace
}  // namespace sluice
