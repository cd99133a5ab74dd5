// What a plan looks like, case by case. Time is a number that the test sets.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

namespace sluice {
namespace {

Request wish(int prompt, int max_tokens) {
  Request r;
  r.prompt.assign(size_t(prompt), 5);
  r.max_tokens = max_tokens;
  return r;
}

class SchedulerTest : public testing::Test {
 protected:
  void make(Policy policy, int blocks, std::vector<int> windows = {0}, int max_length = 64) {
    KvLayout layout{.block_tokens = 4,
                    .windows = std::move(windows),
                    .max_length = max_length,
                    .max_step_tokens = policy.step_tokens};
    scheduler = std::make_unique<Scheduler>(policy, layout, blocks);
  }
  Sequence* add(int prompt, int max_tokens, TimeNs deadline = 0, Lane lane = Lane::standard) {
    Request r = wish(prompt, max_tokens);
    r.lane = lane;
    r.deadline = deadline;
    Sequence* s = &sequences.emplace_back(std::move(r));
    EXPECT_TRUE(scheduler->add(s));
    return s;
  }
  // Plans a step; it stays in flight until land().
  const StepPlan& plan(TimeNs now = 1) {
    StepPlan& p = flying.emplace_back();
    p.reserve(64, 64);
    scheduler->plan(now, p);
    return p;
  }
  void land(TimeNs now = 1) {
    for (const PlanEntry& e : flying.front().entries) {
      Sequence* s = e.sequence;
      const bool last = e.samples && s->generated() + 1 == s->request.max_tokens;
      const bool done = s->request.max_tokens == 0 && e.first + e.count == s->prompt_tokens;
      scheduler->land(e, e.samples ? 7 : -1, last || done ? FinishReason::length : FinishReason::none, now);
    }
    flying.pop_front();
  }
  static const PlanEntry* entry(const StepPlan& p, const Sequence* s) {
    for (const PlanEntry& e : p.entries)
      if (e.sequence == s) return &e;
    return nullptr;
  }

  std::deque<Sequence> sequences;
  std::deque<StepPlan> flying;
  std::unique_ptr<Scheduler> scheduler;
};

TEST_F(SchedulerTest, APromptIsCutByTheBudgetAndSamplesAtItsEnd) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  Sequence* a = add(20, 2);
  const PlanEntry* e = entry(plan(), a);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->first, 0);
  EXPECT_EQ(e->count, 8);
  EXPECT_FALSE(e->samples);
  e = entry(plan(), a);  // while the first chunk is in flight
  ASSERT_TRUE(e);
  EXPECT_EQ(e->first, 8);
  land();
  e = entry(plan(), a);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->first, 16);
  EXPECT_EQ(e->count, 4);
  EXPECT_TRUE(e->samples);
}

TEST_F(SchedulerTest, BesideOthersThatGenerateAPromptTakesSmallerSteps) {
  make({.max_running = 8, .step_tokens = 1024}, 4096, {0}, 8192);
  Sequence* a = add(3, 9);
  plan(), land();
  Sequence* b = add(500, 2);
  const StepPlan& mixed = plan();
  EXPECT_EQ(entry(mixed, a)->count, 1);
  EXPECT_EQ(entry(mixed, b)->count, 32) << "no step has been timed yet";
  land();
  Sequence* c = add(400, 2);
  const StepPlan& pressed = plan();
  EXPECT_EQ(entry(pressed, b)->count, 32);
  EXPECT_EQ(entry(pressed, c), nullptr);
  land();
  add(4000, 2);
  Policy limited = scheduler->policy();
  limited.mixed_prompt_tokens = 20;
  scheduler->set_policy(limited);
  EXPECT_EQ(plan().tokens, 1 + 20) << "the limit";
  land();
  scheduler->end(a, FinishReason::cancelled);
  scheduler->end(b, FinishReason::cancelled);
  EXPECT_EQ(plan().tokens, 1024) << "nobody generates: the whole step";
  land();
}

TEST_F(SchedulerTest, ASequenceThatSitsAStepOutStillKeepsPromptsSmall) {
  make({.max_running = 8, .step_tokens = 1024, .mixed_prompt_tokens = 128}, 4096, {0}, 8192);
  Sequence* a = add(3, 9);
  a->needs_host_state = true;
  plan();  // its first token is in flight
  Sequence* b = add(500, 2);
  const StepPlan& beside = plan();
  EXPECT_EQ(entry(beside, a), nullptr);
  EXPECT_EQ(entry(beside, b)->count, 32);
  land(), land();
}

TEST_F(SchedulerTest, ALastTokenIsNotHeldUpByAPromptEither) {
  make({.max_running = 8, .step_tokens = 1024}, 4096, {0}, 8192);
  Sequence* a = add(3, 2);
  plan(), land();
  Sequence* b = add(3000, 2);
  const StepPlan& last = plan();
  ASSERT_NE(entry(last, a), nullptr);
  EXPECT_EQ(entry(last, b)->count, 32);
  EXPECT_EQ(plan().tokens, 1024) << "it is in flight now, and nobody else generates";
  land(), land();
}

TEST_F(SchedulerTest, TheNextTokenIsPlannedWhileItsPredecessorIsInFlight) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  Sequence* a = add(3, 3);
  EXPECT_TRUE(entry(plan(), a)->samples);
  const PlanEntry* e = entry(plan(), a);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->first, 3);
  EXPECT_EQ(e->count, 1);
  land();
  e = entry(plan(), a);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->first, 4);
  land();
  EXPECT_TRUE(plan().empty()) << "its end is known: three tokens are sampled or in flight";
  land();
  EXPECT_TRUE(a->gone());
  EXPECT_EQ(a->generated(), 3);
  EXPECT_EQ(scheduler->blocks().used(), 0);
}

TEST_F(SchedulerTest, HostStateIsPlannedOnlyWithNothingSampledInFlight) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  Sequence* a = add(12, 3);
  a->needs_host_state = true;
  plan();
  EXPECT_TRUE(entry(plan(), a)) << "chunks of a prompt may overlap";
  EXPECT_FALSE(entry(plan(), a));
  land();
  land();
  land();
  EXPECT_TRUE(entry(plan(), a));
}

TEST_F(SchedulerTest, OneTokenComesBeforeALongPrompt) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  Sequence* a = add(40, 4);
  plan();
  land();
  Sequence* b = add(3, 4);
  for (int i = 0; i < 3; ++i) plan(), land();
  // a still has prompt left; whatever b needs, a never starves and b is not behind it.
  while (a->generated() == 0) plan(), land();
  Sequence* c = add(30, 1);
  const StepPlan& p = plan();
  ASSERT_TRUE(entry(p, a));
  EXPECT_EQ(entry(p, a)->count, 1);
  ASSERT_TRUE(entry(p, c));
  EXPECT_EQ(p.tokens, 8);
  EXPECT_TRUE(b->generated() > 0 || entry(p, b));
}

TEST_F(SchedulerTest, ZeroTokensWantedMeansThePromptOnly) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  Sequence* a = add(8, 0);
  const StepPlan& p = plan();
  EXPECT_FALSE(entry(p, a)->samples);
  EXPECT_TRUE(plan().empty());
  land();
  land();
  EXPECT_TRUE(a->gone());
  EXPECT_EQ(a->finish, FinishReason::length);
}

TEST_F(SchedulerTest, TheQueueRefusesBeyondItsBound) {
  make({.max_running = 1, .step_tokens = 8, .max_queue = 2}, 64);
  add(3, 3);
  add(3, 3);
  Sequence refused(wish(3, 3));
  EXPECT_FALSE(scheduler->has_room());
  EXPECT_FALSE(scheduler->add(&refused));
  plan();  // admits one
  EXPECT_TRUE(scheduler->add(&refused));
}

TEST_F(SchedulerTest, SlotsThenBlocksThenBudgetStopAdmission) {
  make({.max_running = 2, .step_tokens = 8}, 64);
  add(2, 2), add(2, 2), add(2, 2);
  EXPECT_EQ(plan().stopped_by, AdmissionStop::slots);
  make({.max_running = 4, .step_tokens = 16}, 64);
  flying.clear();
  add(16, 40), add(40, 2), add(2, 2);
  EXPECT_EQ(plan().stopped_by, AdmissionStop::budget);
  make({.max_running = 4, .step_tokens = 32}, 16);
  flying.clear();
  add(16, 40), add(48, 2);
  EXPECT_EQ(plan().stopped_by, AdmissionStop::blocks)
      << "48 tokens need 12 blocks; 12 are free, one is promised";
}

TEST_F(SchedulerTest, TheNewestGivesWayAndResumesWhereItWas) {
  make({.max_running = 2, .step_tokens = 32, .min_progress = 1}, 16);
  Sequence* a = add(24, 40);
  Sequence* b = add(20, 40);
  int preempted = 0;
  while (!a->gone()) {
    preempted += plan().preempted;
    land();
    ASSERT_LE(scheduler->blocks().used(), 16);
  }
  EXPECT_GE(preempted, 1);
  EXPECT_EQ(a->preemptions, 0);
  EXPECT_GE(b->preemptions, 1);
  while (!b->gone()) plan(), land();
  EXPECT_EQ(b->generated(), 40);
  EXPECT_EQ(scheduler->blocks().used(), 0);
}

TEST_F(SchedulerTest, AVictimInFlightLeavesWhenItLands) {
  make({.max_running = 2, .step_tokens = 32, .min_progress = 1}, 17);
  Sequence* a = add(24, 40);
  Sequence* b = add(20, 40);
  plan();
  while (plan().preempted == 0) land();
  ASSERT_EQ(flying.size(), 2u);
  ASSERT_EQ(b->state, SequenceState::leaving);
  const int generated = b->generated();
  ASSERT_TRUE(entry(flying.front(), b));
  EXPECT_FALSE(entry(flying.back(), b));
  EXPECT_FALSE(entry(flying.back(), a)) << "the needy waits until the victim has landed";
  land();
  EXPECT_EQ(b->state, SequenceState::waiting);
  EXPECT_EQ(b->generated(), generated + 1) << "what it had in flight counts";
  EXPECT_TRUE(entry(plan(), a));
}

TEST_F(SchedulerTest, ASlowClientGivesUpItsBlocksFirst) {
  make({.max_running = 3, .step_tokens = 32}, 16);
  Sequence* a = add(24, 40);
  Sequence* b = add(20, 40);
  plan();
  land();
  a->paused = true;
  EXPECT_FALSE(entry(plan(), a));
  land();
  while (a->state != SequenceState::waiting) plan(), land();
  EXPECT_EQ(b->preemptions, 0);
  while (!b->gone()) plan(), land();
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(flying.back().stopped_by, AdmissionStop::slow_client);
  a->paused = false;
  EXPECT_TRUE(entry(plan(), a));
}

TEST_F(SchedulerTest, DeadlinesEndWhatWaitsAndWhatRuns) {
  make({.max_running = 1, .step_tokens = 32}, 16);
  Sequence* a = add(4, 40, 100);
  Sequence* b = add(4, 40, 50);
  Sequence* c = add(4, 1, 0);
  EXPECT_TRUE(plan(10).expired.empty());
  EXPECT_EQ(plan(60).expired, std::vector<Sequence*>{b});
  EXPECT_TRUE(b->gone());
  EXPECT_EQ(plan(100).expired, std::vector<Sequence*>{a});
  EXPECT_EQ(a->finish, FinishReason::deadline);
  EXPECT_FALSE(a->gone()) << "two steps in flight use its blocks";
  land(), land(), land();
  EXPECT_TRUE(a->gone());
  EXPECT_TRUE(entry(plan(101), c));
}

TEST_F(SchedulerTest, CancellingFreesAtOnceOrWithTheStepInFlight) {
  make({.max_running = 2, .step_tokens = 32}, 16);
  Sequence* a = add(4, 40);
  plan();
  scheduler->end(a, FinishReason::cancelled);
  EXPECT_FALSE(a->gone());
  EXPECT_TRUE(plan().empty());
  land();
  EXPECT_TRUE(a->gone());
  EXPECT_EQ(a->generated(), 0) << "the result of a step that was in flight is thrown away";
  EXPECT_EQ(scheduler->blocks().used(), 0);
  Sequence* b = add(4, 40);
  scheduler->end(b, FinishReason::cancelled);
  EXPECT_TRUE(b->gone());
  EXPECT_TRUE(scheduler->idle());
}

TEST_F(SchedulerTest, ADeadlineThatHasPassedAlreadyEndsAtTheNextPlan) {
  make({.max_running = 2, .step_tokens = 32}, 16);
  Sequence* late = add(4, 40, 5);
  Sequence* other = add(4, 40);
  const StepPlan& p = plan(10);
  EXPECT_EQ(p.expired, std::vector<Sequence*>{late});
  EXPECT_EQ(late->finish, FinishReason::deadline);
  EXPECT_FALSE(entry(p, late));
  EXPECT_TRUE(entry(p, other));
}

TEST_F(SchedulerTest, DeadlinesEndInTheirOrderWhoeverEndedBefore) {
  make({.max_running = 2, .step_tokens = 32}, 16);
  std::vector<Sequence*> all;
  for (const int deadline : {70, 20, 90, 40, 10, 60, 30, 80, 50}) all.push_back(add(4, 40, deadline));
  scheduler->end(all[1], FinishReason::cancelled);
  scheduler->end(all[4], FinishReason::cancelled);
  std::vector<TimeNs> next;
  for (TimeNs now = 1; scheduler->next_deadline(); now = scheduler->next_deadline()) {
    next.push_back(scheduler->next_deadline());
    plan(next.back()), land(), flying.clear();
    (void)now;
  }
  EXPECT_EQ(next, (std::vector<TimeNs>{30, 40, 50, 60, 70, 80, 90}));
}

TEST_F(SchedulerTest, AClockThatGoesBackIsHarmless) {
  for (const BatchingKind kind : {BatchingKind::continuous, BatchingKind::windowed}) {
    Policy policy{.max_running = 4, .step_tokens = 32};
    policy.batching.kind = kind;
    policy.batching.window.max_batch = 2;
    make(policy, 64);
    Sequence* a = add(4, 6, 1'000'000'000'000);
    Sequence* b = add(4, 6);
    TimeNs now = 500'000'000'000;
    for (int i = 0; i < 40 && !(a->gone() && b->gone()); ++i) {
      now += i % 3 == 0 ? -200'000'000'000 : 100'000'000;
      plan(now), land(now);
    }
    EXPECT_EQ(a->finish, FinishReason::length) << batching_name(kind);
    EXPECT_EQ(b->finish, FinishReason::length) << batching_name(kind);
    EXPECT_TRUE(scheduler->idle());
  }
}

TEST_F(SchedulerTest, CancellingAtEveryStageLeavesNothingBehind) {
  const auto stages = {"waiting", "chunk in flight", "two in flight", "leaving", "preempted", "paused"};
  for (const std::string stage : stages) {
    make({.max_running = 2, .step_tokens = 32, .min_progress = 1}, 16);
    Sequence* a = add(24, 40);
    Sequence* b = add(stage == "chunk in flight" ? 40 : 20, 20);
    if (stage != "waiting") plan();
    if (stage == "two in flight") plan();
    if (stage == "leaving")
      while (plan().preempted == 0) land();
    if (stage == "preempted")
      while (b->state != SequenceState::waiting) plan(), land();
    if (stage == "paused") land(), b->paused = true, plan();
    scheduler->end(b, FinishReason::cancelled);
    EXPECT_TRUE(b->ended()) << stage;
    while (!flying.empty()) land();
    EXPECT_TRUE(b->gone()) << stage;
    while (!a->gone()) plan(), land();
    EXPECT_EQ(a->generated(), 40) << stage;
    EXPECT_TRUE(scheduler->idle()) << stage;
    EXPECT_EQ(scheduler->blocks().used(), 0) << stage;
  }
}

TEST_F(SchedulerTest, AChosenMemberOfABatchIsCancelledLikeAnyother) {
  Policy policy{.max_running = 4, .step_tokens = 8};
  policy.batching = {BatchingKind::windowed, {.max_batch = 3, .max_wait_ns = 0, .idle_ns = 0, .span_ns = 0}};
  make(policy, 64);
  Sequence* a = add(8, 2);
  Sequence* b = add(8, 2);
  Sequence* c = add(8, 2);
  plan();
  EXPECT_EQ(b->waits_as, WaitsAs::chosen) << "the step was full";
  scheduler->end(b, FinishReason::cancelled);
  EXPECT_TRUE(b->gone());
  while (!(a->gone() && c->gone())) plan(), land();
  EXPECT_TRUE(scheduler->idle());
}

TEST_F(SchedulerTest, ALaneTakesItsShareOfSlotsBackFromThoseBelow) {
  make({.max_running = 8, .step_tokens = 64}, 256);
  std::vector<Sequence*> batch;
  for (int i = 0; i < 12; ++i) batch.push_back(add(4, 40, 0, Lane::batch));
  plan(), land();
  EXPECT_EQ(scheduler->running().size(), 8u) << "what nobody else uses is lent";
  Sequence* first = add(4, 3, 0, Lane::interactive);
  EXPECT_EQ(plan().preempted, 1) << "nothing was in flight, so at once";
  land();
  EXPECT_TRUE(entry(plan(), first));
  land();
  while (!first->gone()) plan(), land();
  EXPECT_EQ(scheduler->running().size(), 7u) << "the slot is not lent again at once";
  for (int i = 0; i < 20; ++i) add(4, 300 / 10, 0, Lane::interactive);
  for (int i = 0; i < 4; ++i) plan(), land();
  EXPECT_EQ(scheduler->running_of(0).size(), 1u + 5 * 16 / 21) << "its share, and no more";
}

TEST_F(SchedulerTest, BesideInteractiveABatchGetsItsPartOfTheTime) {
  make({.max_running = 64, .step_tokens = 64}, 2048);
  for (int i = 0; i < 20; ++i) add(1, 40, 0, Lane::batch);
  plan(), land();
  for (int i = 0; i < 16; ++i) add(1, 40, 0, Lane::interactive);
  plan(), land();
  int of_batch = 0;
  for (int i = 0; i < 16; ++i) {
    for (const PlanEntry& e : plan().entries) of_batch += e.sequence->request.lane == Lane::batch;
    land();
  }
  EXPECT_NEAR(of_batch, 16, 2) << "a sixteenth, and nothing is known yet but rows";
}

TEST_F(SchedulerTest, ThePolicyIsReplacedWhileRequestsRunAndWait) {
  make({.max_running = 4, .step_tokens = 16}, 64);
  std::vector<Sequence*> all;
  for (int i = 0; i < 8; ++i) all.push_back(add(6, 12));
  plan();
  Policy policy = scheduler->policy();
  for (const BatchingKind kind : {BatchingKind::serial, BatchingKind::windowed, BatchingKind::continuous}) {
    policy.batching.kind = kind;
    policy.batching.window.max_batch = 2;
    scheduler->set_policy(policy);
    for (int i = 0; i < 9; ++i) plan(1'000'000'000), land();
  }
  while (!scheduler->idle()) plan(), land();
  for (const Sequence* s : all) EXPECT_EQ(s->generated(), 12);
}

// Two cores: a decode step of one stream takes 3.4 ms, a row of a prompt 0.6.
TEST_F(SchedulerTest, WhereRowsCostMuchAPromptGetsFewerThanALeastChunk) {
  make({.max_running = 8, .step_tokens = 512}, 4096, {0}, 8192);
  const auto timed = [&]() -> const StepPlan& {
    const StepPlan& p = plan();
    int64_t took = 2'400'000;
    for (const PlanEntry& e : p.entries) took += e.count == 1 ? 1'000'000 : 600'000 * e.count;
    scheduler->note_step(p, took);
    return p;
  };
  Sequence* a = add(40, 4000);
  for (int i = 0; i < 10; ++i) timed(), land();
  Sequence* b = add(900, 1);
  for (int i = 0; i < 30; ++i) timed(), land();
  for (int i = 0; i < 30 && !b->gone(); ++i) {
    const StepPlan& p = timed();
    ASSERT_TRUE(entry(p, a) && entry(p, b));
    EXPECT_LE(entry(p, b)->count, 4) << "0.7 of 3.4 ms";
    land();
  }
  // The first that knows no better, and a target that cannot be kept, still let prompts on.
  Policy policy = scheduler->policy();
  policy.target_itl_ns = 1'000'000;
  scheduler->set_policy(policy);
  EXPECT_EQ(entry(timed(), b)->count, 8);
  land();
}

TEST_F(SchedulerTest, AClockThatGoesBackwardsHoldsNobodyUp) {
  make({.max_running = 4, .step_tokens = 8}, 64);
  std::vector<Sequence*> all;
  for (int i = 0; i < 6; ++i) all.push_back(add(5, 6));
  for (TimeNs now = 1'000'000'000'000; !scheduler->idle(); now -= 3'000'000'000) {
    ASSERT_GT(now, 0);
    plan(now), land(now - 1);
  }
  for (const Sequence* s : all) EXPECT_EQ(s->generated(), 6);
}

TEST_F(SchedulerTest, ATargetSetByHandCutsPrompts) {
  make({.max_running = 8, .step_tokens = 1024}, 4096, {0}, 8192);
  const auto timed = [&](TimeNs now = 1) -> const StepPlan& {
    const StepPlan& p = plan(now);
    int64_t took = 4'000'000;
    for (const PlanEntry& e : p.entries) took += 20'000 * e.count;
    scheduler->note_step(p, took);
    return p;
  };
  Sequence* a = add(3, 200);
  Sequence* b = add(2000, 1);
  while (!b->gone()) timed(), land();
  for (int i = 0; i < 20; ++i) timed(), land();
  Policy policy = scheduler->policy();
  policy.target_itl_ns = 10'000'000;
  scheduler->set_policy(policy);
  add(4000, 1);
  const StepPlan& p = timed();
  EXPECT_TRUE(entry(p, a));
  EXPECT_NEAR(p.tokens, 1 + (10 - 4.02) / 0.02, 30);
  land();
}

}  // namespace
}  // namespace sluice
