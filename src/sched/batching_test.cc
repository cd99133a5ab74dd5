// Batching policies, rule by rule, through the scheduler. The clock is a number that the test sets, in ms.
#include "sched/batching.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "sched/scheduler.h"

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;

class BatchingTest : public testing::Test {
 protected:
  void make(const Batching& batching, int blocks = 512, Policy policy = {.max_running = 8, .step_tokens = 64}) {
    policy.batching = batching;
    const KvLayout layout{
        .block_tokens = 4, .windows = {0}, .max_length = 64, .max_step_tokens = policy.step_tokens};
    scheduler_ = std::make_unique<Scheduler>(policy, layout, blocks);
  }
  void windowed(BatchWindow window) { make({BatchingKind::windowed, window}); }

  Sequence* arrive(TimeNs at, int prompt = 4, int max_tokens = 2, TimeNs deadline = 0) {
    now_ = at * kMs;
    Request r;
    r.prompt.assign(size_t(prompt), 5);
    r.max_tokens = max_tokens;
    r.deadline = deadline * kMs;
    Sequence* s = &sequences_.emplace_back(std::move(r));
    s->arrived_at = now_;
    EXPECT_TRUE(scheduler_->add(s));
    return s;
  }
  const StepPlan& plan(TimeNs at) {
    now_ = at * kMs;
    StepPlan& p = flying_.emplace_back();
    p.reserve(64, 1024);
    scheduler_->plan(now_, p);
    return p;
  }
  void land() {
    for (const PlanEntry& e : flying_.front().entries) {
      const bool last = e.samples && e.sequence->generated() + 1 == e.sequence->request.max_tokens;
      scheduler_->land(e, e.samples ? 7 : -1, last ? FinishReason::length : FinishReason::none, now_);
    }
    flying_.pop_front();
  }
  // Nothing is to be flushed before `at`, and something is then; unless it's 0: no time makes it.
  void expect_flush_at(TimeNs at) { EXPECT_EQ(scheduler_->next_flush(), at * kMs); }
  void expect_gathering(TimeNs at) {
    const StepPlan& p = plan(at);
    EXPECT_TRUE(p.empty());
    EXPECT_EQ(p.stopped_by, AdmissionStop::window);
    EXPECT_EQ(p.flushed_by, FlushReason::none);
    land();
  }
  void expect_flush(TimeNs at, FlushReason reason, int members) {
    const StepPlan& p = plan(at);
    EXPECT_EQ(flush_reason_name(p.flushed_by), std::string(flush_reason_name(reason)));
    EXPECT_EQ(p.batch, members);
    EXPECT_EQ(p.admitted, members);
    expect_flush_at(0);
    land();
  }
  void run_dry() {
    while (!scheduler_->running().empty()) plan(now_ / kMs), land();
  }

  TimeNs now_ = 0;
  std::deque<Sequence> sequences_;
  std::deque<StepPlan> flying_;
  std::unique_ptr<Scheduler> scheduler_;
};

constexpr BatchWindow kSliding{
    .max_batch = 3, .max_wait_ns = 100 * kMs, .idle_ns = 50 * kMs, .span_ns = 200 * kMs};
constexpr BatchWindow kPlain{.max_batch = 3, .max_wait_ns = 15 * kMs, .idle_ns = 0, .span_ns = 0};

TEST_F(BatchingTest, ContinuousLetsInAtOnceAndAsksForNoTime) {
  make({});
  arrive(1);
  expect_flush_at(0);
  const StepPlan& p = plan(1);
  EXPECT_EQ(p.admitted, 1);
  EXPECT_EQ(p.flushed_by, FlushReason::none);
  arrive(1);
  EXPECT_EQ(plan(1).admitted, 1);
}

TEST_F(BatchingTest, SizeFlushes) {
  windowed(kPlain);
  arrive(10), arrive(10);
  expect_gathering(11);
  arrive(12), arrive(12);
  expect_flush(12, FlushReason::size, 3);
  EXPECT_EQ(scheduler_->waiting().size(), 1u);
}

TEST_F(BatchingTest, TheFirstArrivalsAgeFlushes) {
  windowed(kPlain);
  arrive(10), arrive(20);
  expect_flush_at(25);
  expect_gathering(24);
  expect_flush(25, FlushReason::age, 2);
}

TEST_F(BatchingTest, IdlenessFlushes) {
  windowed(kSliding);
  arrive(10);
  expect_flush_at(60);
  expect_gathering(59);
  arrive(59);
  expect_flush_at(109);
  expect_gathering(60);
  expect_gathering(108);
  expect_flush(109, FlushReason::idle, 2);
}

TEST_F(BatchingTest, WhateverComesFirst) {
  windowed(kSliding);
  arrive(10), arrive(55);
  arrive(100);
  expect_flush(100, FlushReason::size, 3);
  run_dry();
  arrive(200), arrive(280);
  expect_flush_at(300);
  expect_flush(300, FlushReason::age, 2);  // before the idle trigger, due at 330
}

TEST_F(BatchingTest, NoWaitFlushesWhatIsThere) {
  windowed({.max_batch = 3, .max_wait_ns = 0, .idle_ns = 0, .span_ns = 0});
  arrive(10), arrive(10);
  expect_flush(10, FlushReason::age, 2);
}

TEST_F(BatchingTest, ABatchRunsToTheEndOfItsLongestAndNobodyJoins) {
  windowed(kPlain);
  Sequence* brief = arrive(10, 4, 1);
  Sequence* lengthy = arrive(10, 4, 9);
  expect_flush(25, FlushReason::age, 2);
  EXPECT_TRUE(brief->gone());
  Sequence* next = arrive(26);
  while (!lengthy->gone()) {
    const StepPlan& p = plan(1000);
    EXPECT_EQ(p.entries.size(), 1u);
    EXPECT_EQ(p.stopped_by, AdmissionStop::window);
    expect_flush_at(0);
    land();
    EXPECT_EQ(next->state, SequenceState::waiting);
  }
  expect_flush_at(41);
  expect_flush(1001, FlushReason::age, 1);  // it had waited long enough by then
}

TEST_F(BatchingTest, AStepInFlightIsPartOfTheBatch) {
  windowed(kPlain);
  Sequence* a = arrive(10, 4, 9);
  plan(25);
  scheduler_->end(a, FinishReason::cancelled);
  arrive(26);
  EXPECT_TRUE(plan(500).empty());
  expect_flush_at(0);
  land(), land();
  expect_flush(500, FlushReason::age, 1);
}

TEST_F(BatchingTest, TheWindowCutsABacklog) {
  windowed({.max_batch = 8, .max_wait_ns = 100 * kMs, .idle_ns = 50 * kMs, .span_ns = 200 * kMs});
  arrive(0, 4, 9);
  expect_flush(100, FlushReason::age, 1);
  arrive(110), arrive(200), arrive(310), arrive(311), arrive(500);
  run_dry();
  expect_flush(600, FlushReason::age, 3);  // 110 to 310
  run_dry();
  expect_flush(601, FlushReason::age, 2);  // 311 to 511
}

TEST_F(BatchingTest, ABatchBeyondAStepsBudgetStartsOverSeveral) {
  make({BatchingKind::windowed, kPlain});
  Sequence* a = arrive(10, 40, 3);
  Sequence* b = arrive(10, 40, 3);
  Sequence* c = arrive(10, 40, 3);
  Sequence* late = arrive(10, 4, 3);
  const StepPlan& first = plan(11);
  EXPECT_EQ(first.batch, 3);
  EXPECT_EQ(first.admitted, 2);
  EXPECT_EQ(first.stopped_by, AdmissionStop::budget);
  land();
  const StepPlan& second = plan(12);
  EXPECT_EQ(second.admitted, 1);
  EXPECT_EQ(second.flushed_by, FlushReason::none) << "the same batch";
  EXPECT_EQ(second.stopped_by, AdmissionStop::window);
  land();
  while (!(a->gone() && b->gone() && c->gone())) {
    EXPECT_EQ(late->state, SequenceState::waiting);
    plan(13), land();
  }
}

TEST_F(BatchingTest, CancellingWhileGathering) {
  windowed(kPlain);
  Sequence* a = arrive(10);
  Sequence* b = arrive(20);
  expect_flush_at(25);
  scheduler_->end(a, FinishReason::cancelled);
  expect_flush_at(35);
  expect_gathering(25);
  expect_flush(35, FlushReason::age, 1);
  EXPECT_TRUE(a->gone());
  EXPECT_EQ(b->admitted_at, 35 * kMs);
  run_dry();
  scheduler_->end(arrive(40), FinishReason::cancelled);
  expect_flush_at(0);
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(BatchingTest, ADeadlineWhileGathering) {
  windowed(kPlain);
  Sequence* a = arrive(10, 4, 2, 18);
  Sequence* b = arrive(12);
  EXPECT_EQ(scheduler_->next_deadline(), 18 * kMs);
  const StepPlan& p = plan(18);
  EXPECT_EQ(p.expired, std::vector<Sequence*>{a});
  EXPECT_TRUE(p.empty());
  land();
  expect_flush_at(27);
  expect_flush(27, FlushReason::age, 1);
  EXPECT_GE(b->admitted_at, 27 * kMs);
}

TEST_F(BatchingTest, WhoIsLeftOfABatchThatWasCancelledStillEndsIt) {
  windowed(kPlain);
  std::vector<Sequence*> batch;
  for (int i = 0; i < 3; ++i) batch.push_back(arrive(10, 40, 3));
  Sequence* next = arrive(11);
  plan(11), land();  // two of three have begun
  for (Sequence* s : batch) scheduler_->end(s, FinishReason::cancelled);
  expect_flush(30, FlushReason::age, 1);
  EXPECT_EQ(next->admitted_at, 30 * kMs);
}

TEST_F(BatchingTest, APreemptionLetsNoNewcomerIn) {
  make({BatchingKind::windowed, {.max_batch = 2, .max_wait_ns = 15 * kMs, .idle_ns = 0, .span_ns = 0}}, 16,
       {.max_running = 4, .step_tokens = 32, .min_progress = 1});
  Sequence* a = arrive(10, 24, 40);
  Sequence* b = arrive(10, 20, 40);
  Sequence* newcomer = arrive(10, 1, 1);
  int preempted = 0;
  while (!a->gone() || !b->gone()) {
    preempted += plan(5000).preempted;
    land();
    ASSERT_EQ(newcomer->state, SequenceState::waiting);
  }
  EXPECT_GE(preempted, 1);
  EXPECT_GE(b->preemptions, 1);
  EXPECT_EQ(b->generated(), 40);
  expect_flush(5000, FlushReason::age, 1);
}

TEST_F(BatchingTest, SerialIsOneAtATimeInOrder) {
  make({.kind = BatchingKind::serial});
  std::vector<Sequence*> order;
  for (int i = 0; i < 4; ++i) order.push_back(arrive(10, 4, 1 + i));
  scheduler_->end(order[2], FinishReason::cancelled);
  for (int i : {0, 1, 3}) {
    const StepPlan& p = plan(10);
    EXPECT_EQ(p.flushed_by, FlushReason::serial);
    EXPECT_EQ(p.batch, 1);
    EXPECT_EQ(p.stopped_by, i == 3 ? AdmissionStop::none : AdmissionStop::serial);
    ASSERT_EQ(p.entries.size(), 1u);
    EXPECT_EQ(p.entries[0].sequence, order[size_t(i)]);
    expect_flush_at(0);
    land();
    while (!order[size_t(i)]->gone()) {
      const StepPlan& more = plan(11);
      EXPECT_LE(more.entries.size(), 1u);
      EXPECT_EQ(more.admitted, 0);
      land();
    }
  }
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(BatchingTest, WhoeverWaitsForALaterBatchIsNoBacklog) {
  make({.kind = BatchingKind::serial}, 512,
       {.max_running = 4, .step_tokens = 64, .mixed_prompt_tokens = 32, .max_queue = 64});
  arrive(1, 4, 5);
  for (int i = 0; i < 30; ++i) arrive(1, 60, 2);
  plan(1), land();
  const StepPlan& p = plan(1);
  EXPECT_EQ(p.tokens, 1);
}

}  // namespace
}  // namespace sluice
