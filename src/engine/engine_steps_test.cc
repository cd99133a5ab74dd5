// How the engine's steps are made: batches, steps that overlap, their records, what a bug shows of them.
#include <gtest/gtest.h>

#include <deque>

#include "engine/engine_fixture.h"
#include "engine/engine_meters.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

class EngineStepsTest : public EngineTest {};

TEST_P(EngineStepsTest, EveryBatchingPolicyAnswersTheSame) {
  for (const Batching& batching :
       {Batching{.kind = BatchingKind::serial},
        Batching{BatchingKind::windowed,
                 {.max_batch = 8, .max_wait_ns = 2'000'000, .idle_ns = 0, .span_ns = 0}},
        Batching{BatchingKind::windowed,
                 {.max_batch = 5, .max_wait_ns = 2'000'000, .idle_ns = 500'000, .span_ns = 3'000'000}}}) {
    Scene scene;
    scene.policy.batching = batching;
    make(scene);
    std::vector<Request> wishes;
    std::deque<TestClient> clients;
    for (int i = 0; i < 30; ++i)
      wishes.push_back(wish(1 + i * 9 % 70, 1 + i * 5 % 20, uint64_t(i % 3) * uint64_t(i)));
    for (const Request& r : wishes) clients.emplace_back(*engine_, r);
    clients[7].stream->cancel();
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].finish();
      if (i != 7) {
        EXPECT_EQ(clients[i].ids, expected(wishes[i])) << "request " << i;
      }
    }
    expect_empty();
    const bool serial = batching.kind == BatchingKind::serial;
    int batches = 0;
    for (const StepRecord& r : engine_->step_ledger()->last(StepLedger::kCapacity)) {
      batches += r.batch > 0;
      EXPECT_EQ(r.batch > 0, r.flushed_by != FlushReason::none);
      EXPECT_LE(r.sequences, serial ? 1 : batching.window.max_batch);
    }
    EXPECT_GE(batches, serial ? 29 : 30 / batching.window.max_batch);
    engine_.reset();
  }
}

// Nothing but time makes the batch: the loop wakes for it.
TEST_P(EngineStepsTest, ABatchGathersUntilItIsFlushed) {
  Scene scene;
  scene.policy.batching = {BatchingKind::windowed,
                           {.max_batch = 8, .max_wait_ns = 20'000'000, .idle_ns = 0, .span_ns = 0}};
  make(scene);
  EngineMeters meters;
  const uint64_t flushed = meters.batches[size_t(FlushReason::age)]->value();
  std::deque<TestClient> clients;
  for (int i = 0; i < 3; ++i) clients.emplace_back(*engine_, wish(4, 3));
  for (TestClient& client : clients) client.finish();
  const RequestTimes& first = clients[0].stream->times();
  EXPECT_GE(first.admitted - first.submitted, scene.policy.batching.window.max_wait_ns);
  EXPECT_GT(meters.batches[size_t(FlushReason::age)]->value(), flushed);
  expect_empty();
}

TEST_P(EngineStepsTest, SchedulingIsReplacedWhileRequestsRun) {
  make();
  runner_->hold();
  std::vector<Request> wishes;
  std::deque<TestClient> clients;
  for (int i = 0; i < 20; ++i) clients.emplace_back(*engine_, wishes.emplace_back(wish(5 + i, 30)));
  EngineConfig config;
  config.batching.policy = "serial";
  EXPECT_EQ(*engine_->reschedule(config), "batching: continuous -> serial");
  EXPECT_EQ(*engine_->reschedule(config), "") << "no change";
  config.scheduling.batch_weight = 0;
  const auto refused = engine_->reschedule(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "scheduler.lanes.batch.weight");
  runner_->let_go();
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].ids, expected(wishes[i])) << "request " << i;
  }
  expect_empty();
}

TEST(OneSequenceShareTest, IsOfRecentSteps) {
  OneSequenceShare share;
  EXPECT_EQ(share.after(1), 1);
  EXPECT_EQ(share.after(2), 0.5);
  EXPECT_EQ(share.after(9), 1.0 / 3);
  for (int i = 0; i < 20000; ++i) share.after(1);
  EXPECT_GT(share.after(1), 0.99);
}

TEST_P(EngineStepsTest, TheNextStepIsBuiltWhileOneRuns) {
  make();
  runner_->hold();
  const int begun = runner_->begun();
  TestClient client(*engine_, wish(10, 3));
  runner_->await_begun(begun + 1);
  // Its end arrives after a whole turn of the loop, which has launched what could be launched.
  TestClient bystander(*engine_, wish(10, 3));
  bystander.stream->cancel();
  bystander.finish();
  runner_->let_go();
  client.finish();
  EXPECT_EQ(client.ids, expected(wish(10, 3)));
  const auto records = engine_->step_ledger()->last(10);
  ASSERT_GE(records.size(), 2u);
  EXPECT_LT(records[1].planned_at + records[1].plan_ns + records[1].build_ns,
            records[0].execute_at + records[0].execute_ns);
  expect_empty();
}

TEST_P(EngineStepsTest, ABugShowsTheLastSteps) {
  make();
  TestClient client(*engine_, wish(70, 10));
  client.finish();
  engine_->drain(now_ns() + 60'000'000'000);
  EXPECT_DEATH(CHECK(false, "a bug"), "a bug.*\n(.*\n)*.*step 1: 32 tokens of 1 sequences");
}

TEST_P(EngineStepsTest, StepsLeaveRecords) {
  make();
  TestClient client(*engine_, wish(70, 10));
  client.finish();
  engine_->drain(now_ns() + 60'000'000'000);
  const auto records = engine_->step_ledger()->last(100);
  ASSERT_EQ(records.size(), 3u + 9u);
  EXPECT_EQ(records[0].tokens, 32);
  EXPECT_EQ(records[0].admitted, 1);
  EXPECT_EQ(records[2].tokens, 6);
  EXPECT_EQ(records[2].logit_rows, 1);
  EXPECT_EQ(records.back().tokens, 1);
  EXPECT_EQ(records.back().longest_context, 79);
  EXPECT_EQ(records.back().ended, 1);
  int64_t last = 0;
  for (const StepRecord& r : records) {
    EXPECT_EQ(r.step, last + 1);
    EXPECT_GE(r.execute_at, r.planned_at);
    EXPECT_FALSE(describe(r).empty());
    last = r.step;
  }
}

TEST_P(EngineStepsTest, StepsOverlapOnADeviceBehindTheHost) {
  if (!behind()) return;  // the other launches the next step when the one before has been computed
  make();
  runner_->hold();
  const int begun = runner_->begun(), computed = runner_->computed();
  const Request r = wish(10, 6);
  TestClient client(*engine_, r);
  for (int i = 0; i < 6; ++i) {
    runner_->await_begun(begun + std::min(i + 2, 6));
    EXPECT_EQ(runner_->computed(), computed + i) << "launched while the one before is still held";
    runner_->release();
    client.take(client.next());
  }
  EXPECT_EQ(client.ids, expected(r));
  EXPECT_EQ(client.reason, FinishReason::length);
  runner_->let_go();
  expect_empty();
}

TEST_P(EngineStepsTest, CancellingBetweenTwoStepsUnderWay) {
  make();
  runner_->hold();
  const int begun = runner_->begun();
  const Request r = wish(10, 50);
  TestClient leaves(*engine_, r), stays(*engine_, wish(11, 9));
  runner_->await_begun(begun + (behind() ? 2 : 1));
  runner_->release();
  leaves.take(leaves.next());
  leaves.stream->cancel();
  runner_->let_go();
  leaves.finish();
  EXPECT_EQ(leaves.reason, FinishReason::cancelled);
  const std::vector<int32_t> all = expected(r);
  ASSERT_LE(leaves.ids.size(), all.size());
  EXPECT_TRUE(std::equal(leaves.ids.begin(), leaves.ids.end(), all.begin()));
  stays.finish();
  EXPECT_EQ(stays.ids, expected(wish(11, 9)));
  expect_empty();
}

TEST_P(EngineStepsTest, ReplaysAreCountedAndAllIsRecordedAtStart) {
  EngineMeters meters;
  const auto counts = [&] {
    std::array<uint64_t, 3> n{};
    for (size_t i = 0; i < n.size(); ++i) n[i] = meters.graph_steps[i]->value();
    return n;
  };
  const auto before = counts();
  make();
  std::deque<TestClient> clients;
  for (int i = 0; i < 7; ++i) clients.emplace_back(*engine_, wish(5 + i, 10 + 3 * i));
  for (TestClient& c : clients) c.finish();
  expect_empty();
  const auto after = counts();
  const uint64_t none = after[size_t(GraphUse::none)] - before[size_t(GraphUse::none)];
  const uint64_t hits = after[size_t(GraphUse::hit)] - before[size_t(GraphUse::hit)];
  EXPECT_EQ(after[size_t(GraphUse::miss)], before[size_t(GraphUse::miss)]);
  if (behind()) {
    EXPECT_GT(hits, 20u);
    EXPECT_LT(none, 10u) << "prompts only";
  } else {
    EXPECT_EQ(hits, 0u);
  }
  uint64_t steps = 0;
  for (const StepRecord& r : engine_->step_ledger()->last(1000)) {
    ++steps;
    const bool decode = r.tokens == r.one_token_sequences && r.tokens == r.logit_rows;
    EXPECT_EQ(r.graph == GraphUse::hit, behind() && decode) << describe(r);
    EXPECT_LE(r.gap_ns, r.idle_ns);
  }
  EXPECT_EQ(steps, none + hits);
}

TEST_P(EngineStepsTest, IdleTimeWithoutWorkIsNoGap) {
  make();
  TestClient first(*engine_, wish(5, 3));
  first.finish();
  engine_->drain(now_ns() + 60'000'000'000);
  const StepRecord r = engine_->step_ledger()->last(100)[0];
  EXPECT_LE(r.gap_ns, r.execute_at - r.planned_at) << "counted from its plan, not from the end of the warm-up";
}

// A fault found by the executor while two steps are under way, with the other threads alive and one of them
// waiting: the process ends and says what ran.
TEST_P(EngineStepsTest, AFaultOfTheDeviceShowsTheStepsUnderWay) {
  if (!behind()) return;
  EXPECT_EXIT(
      {
        make();
        runner_->hold();
        const int begun = runner_->begun();
        TestClient client(*engine_, wish(70, 10));
        runner_->await_begun(begun + 2);
        runner_->fail_next_look();
        client.finish();
      },
      testing::KilledBySignal(SIGABRT),
      "the device is gone.*\n(.*\n)*.*under way: step 1: 32 tokens of 1 sequences");
}
INSTANTIATE_TEST_SUITE_P(Devices, EngineStepsTest,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host),
                         device_name);

}  // namespace
}  // namespace sluice
