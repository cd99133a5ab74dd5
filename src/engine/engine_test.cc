// The whole engine, its threads included, on a scripted model (fake_runner.h).
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

#include "engine/allocation_counter.h"
#include "engine/engine_meters.h"
#include "engine/fake_runner.h"
#include "engine/make_engine.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

constexpr int kVocab = 1000;

struct Scene {
  Policy policy{.max_running = 8, .step_tokens = 32, .max_queue = 64, .min_progress = 4};
  std::vector<int> windows = {0, 12};
  int context = 512;
  int blocks = 0;  // 0: plenty
  std::vector<int32_t> end_ids = {};
};

// Every test runs on a device that computes in launch, as the CPU does, and on one that works behind the host,
// as a card does; the latter with replay.
class EngineTest : public testing::TestWithParam<FakeRunner::Device> {
 protected:
  void make(Scene scene = {}) {
    scene_ = scene;
    const KvLayout layout{.block_tokens = 4,
                          .windows = scene.windows,
                          .max_length = scene.context,
                          .max_step_tokens = scene.policy.step_tokens};
    EngineInfo info;
    info.spec.vocab = kVocab;
    info.context = scene.context;
    info.blocks = scene.blocks ? scene.blocks : layout.peak_blocks(scene.context) * scene.policy.max_running;
    info.end_ids = scene.end_ids;
    auto runner =
        std::make_unique<FakeRunner>(layout, info.blocks, scene.policy.max_running, kVocab, GetParam());
    runner_ = runner.get();
    engine_ = make_engine(std::move(info), scene.policy, layout, ModelCost{}, std::move(runner),
                          {.prompts = {16, 3}}, behind());
  }
  static bool behind() { return GetParam() == FakeRunner::Device::behind_the_host; }
  void TearDown() override {
    if (engine_) runner_->let_go();
  }

  static Request wish(int prompt, int max_tokens, uint64_t seed = 0) {
    Request r;
    std::mt19937 random(uint32_t(prompt * 7919 + seed));
    for (int i = 0; i < prompt; ++i) r.prompt.push_back(int32_t(random() % kVocab));
    r.max_tokens = max_tokens;
    r.sampling.temperature = seed ? 1.0f : 0.0f;
    r.sampling.seed = seed;
    return r;
  }
  std::vector<int32_t> expected(const Request& r) const {
    std::vector<int32_t> ids = r.prompt, out;
    for (int i = 0; i < r.max_tokens; ++i) {
      out.push_back(
          FakeRunner::expected_next(ids, scene_.windows, kVocab, r.sampling.temperature, r.sampling.seed));
      ids.push_back(out.back());
      if (std::find(scene_.end_ids.begin(), scene_.end_ids.end(), out.back()) != scene_.end_ids.end() &&
          !r.ignore_eos)
        break;
    }
    return out;
  }
  void expect_empty() {
    engine_->drain(now_ns() + 60'000'000'000);
    EXPECT_EQ(engine_->status().blocks_used, 0);
    EXPECT_EQ(engine_->status().running, 0);
    EXPECT_EQ(engine_->status().waiting, 0);
  }

  Scene scene_;
  FakeRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineTest, GeneratesWhatTheModelSays) {
  make();
  const Request r = wish(100, 40);
  TestClient client(*engine_, r);
  client.finish();
  EXPECT_EQ(client.ids, expected(r));
  EXPECT_EQ(client.reason, FinishReason::length);
  const RequestTimes& t = client.stream->times();
  EXPECT_GT(t.admitted, 0);
  EXPECT_LE(t.submitted, t.admitted);
  EXPECT_LE(t.admitted, t.first_token);
  EXPECT_LE(t.first_token, t.finished);
  EXPECT_EQ(t.steps, 4 + 39);
  expect_empty();
}

TEST_P(EngineTest, ManyMixedRequestsEachGetTheirOwn) {
  make();
  std::vector<Request> wishes;
  std::deque<TestClient> clients;
  for (int i = 0; i < 40; ++i)
    wishes.push_back(wish(1 + i * 9 % 130, 1 + i * 5 % 60, uint64_t(i % 3) * uint64_t(i)));
  for (const Request& r : wishes) clients.emplace_back(*engine_, r);
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].ids, expected(wishes[i])) << "request " << i;
  }
  expect_empty();
}

TEST_P(EngineTest, APreemptedRequestIsAsIfUndisturbed) {
  Scene scene;
  scene.context = 128;
  scene.blocks = 80;
  make(scene);
  std::vector<Request> wishes;
  std::deque<TestClient> clients;
  for (int i = 0; i < 24; ++i) wishes.push_back(wish(10 + i, 90, uint64_t(i)));
  for (Request& r : wishes) r.sampling.top_logprobs = 2;
  for (const Request& r : wishes) clients.emplace_back(*engine_, r);
  int preemptions = 0;
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].ids, expected(wishes[i])) << "request " << i;
    preemptions += clients[i].stream->times().preemptions;
  }
  EXPECT_GT(preemptions, 0);
  expect_empty();
}

// Conversations: each goes on from what an earlier one was answered, some stop at an end id with the next step
// already in flight, some are preempted.
TEST_P(EngineTest, WhatIsFoundInThePrefixCacheIsWhatWasComputed) {
  for (const int blocks : {0, 150}) {
    Scene scene;
    scene.policy.prefix_cache = true;
    scene.context = 256;
    scene.blocks = blocks;
    for (int32_t id = 0; id < 40; ++id) scene.end_ids.push_back(id);
    make(scene);
    std::vector<Request> wishes;
    for (int i = 0; i < 6; ++i) wishes.push_back(wish(30 + i, 40, uint64_t(i)));
    int cached = 0;
    for (int turn = 0; turn < 5; ++turn) {
      std::deque<TestClient> clients;
      for (const Request& r : wishes) clients.emplace_back(*engine_, r);
      for (const Request& r : wishes) clients.emplace_back(*engine_, r);
      for (size_t i = 0; i < clients.size(); ++i) {
        Request& r = wishes[i % wishes.size()];
        clients[i].finish();
        EXPECT_EQ(clients[i].ids, expected(r)) << "turn " << turn << " request " << i;
        cached += clients[i].stream->times().cached_tokens;
        EXPECT_LT(clients[i].stream->times().cached_tokens, int(r.prompt.size()));
      }
      for (size_t i = 0; i < wishes.size(); ++i) {
        Request& r = wishes[i];
        r.prompt.insert(r.prompt.end(), clients[i].ids.begin(), clients[i].ids.end());
        r.prompt.resize(std::min<size_t>(r.prompt.size(), 200));
        r.cache_salt[0] = uint64_t(turn == 3);
      }
    }
    EXPECT_GT(cached, 500);
    expect_empty();
    engine_.reset();
  }
}

TEST_P(EngineTest, ABurstWithOnePromptComputesItOnce) {
  Scene scene;
  scene.policy.prefix_cache = true;
  make(scene);
  Request r = wish(200, 3);
  runner_->hold();
  const int begun = runner_->begun();
  std::deque<TestClient> clients;
  clients.emplace_back(*engine_, r);
  runner_->await_begun(begun + 1);  // it runs, and the others come behind it
  for (int i = 0; i < 5; ++i) clients.emplace_back(*engine_, r);
  runner_->let_go();
  for (TestClient& c : clients) {
    c.finish();
    EXPECT_EQ(c.ids, expected(r));
  }
  for (size_t i = 1; i < clients.size(); ++i)
    EXPECT_GE(clients[i].stream->times().cached_tokens, 196 - 4 * 4) << "request " << i;
}

TEST_P(EngineTest, PenaltiesSeeTheWholeHistory) {
  make();
  Request r = wish(20, 30);
  r.sampling.repetition_penalty = 1.2f;
  TestClient alone(*engine_, r);
  alone.finish();
  std::deque<TestClient> others;
  for (int i = 0; i < 6; ++i) others.emplace_back(*engine_, wish(30 + i, 60));
  TestClient again(*engine_, r);
  again.finish();
  EXPECT_EQ(again.ids, alone.ids);
  EXPECT_NE(again.ids, expected(wish(20, 30)));
  for (TestClient& c : others) c.finish();
  expect_empty();
}

TEST_P(EngineTest, AnEndIdEndsAndWhatWasInFlightIsThrownAway) {
  make();
  const Request r = wish(10, 30);
  std::vector<int32_t> all = expected(r);
  size_t at = 5;
  while (std::find(all.begin(), all.begin() + long(at), all[at]) != all.begin() + long(at)) ++at;
  Scene scene;
  scene.end_ids = {all[at]};
  make(scene);
  TestClient client(*engine_, r);
  client.finish();
  EXPECT_EQ(client.ids, std::vector<int32_t>(all.begin(), all.begin() + long(at) + 1));
  EXPECT_EQ(client.reason, FinishReason::stop);
  EXPECT_EQ(client.last.stop_id, all[at]);

  Request ignoring = r;
  ignoring.ignore_eos = true;
  TestClient on(*engine_, ignoring);
  on.finish();
  EXPECT_EQ(on.ids, all) << "an ignored end id may be sampled and ends nothing";

  Request longer = r;
  longer.min_tokens = int(at) + 2;
  TestClient more(*engine_, longer);
  more.finish();
  EXPECT_GE(more.ids.size(), at + 2);
  EXPECT_NE(more.ids[at], all[at]) << "end ids are not sampled before min_tokens";

  Request own = ignoring;
  own.stop_ids = {all[1], -5, 1 << 30};
  TestClient stopped(*engine_, own);
  stopped.finish();
  EXPECT_EQ(stopped.reason, FinishReason::stop);
  EXPECT_LE(stopped.ids.size(), 2u);
  expect_empty();
}

TEST_P(EngineTest, PromptLogprobsCoverTheWholePromptOnce) {
  Scene scene;
  scene.context = 2048;
  scene.blocks = 1100;
  make(scene);
  Request r = wish(1500, 3);
  r.sampling.prompt_top_logprobs = 3;
  r.sampling.top_logprobs = 1;
  TestClient client(*engine_, r);
  client.take(client.next());
  EXPECT_EQ(client.stream->prompt_logprobs().size(), 1499u);
  client.finish();
  EXPECT_EQ(client.ids, expected(r));
  EXPECT_EQ(client.stream->prompt_logprobs().size(), 1499u);
  EXPECT_EQ(client.stream->prompt_logprobs()[7].count, 3);

  r.max_tokens = 0;
  TestClient echo(*engine_, r);
  echo.finish();
  EXPECT_TRUE(echo.ids.empty());
  EXPECT_EQ(echo.reason, FinishReason::length);
  ASSERT_EQ(echo.stream->prompt_logprobs().size(), 1499u);
  for (size_t i = 0; i < 1499; ++i)
    ASSERT_EQ(echo.stream->prompt_logprobs()[i].logprob, client.stream->prompt_logprobs()[i].logprob);
  expect_empty();
}

TEST_P(EngineTest, BadRequestsAreRefusedWithTheFieldNamed) {
  make();
  const auto field = [&](Request r) {
    TestClient c(*engine_, std::move(r));
    EXPECT_EQ(c.stream, nullptr);
    EXPECT_EQ(c.error.code, ErrorCode::kInvalidArgument);
    return c.error.field;
  };
  EXPECT_EQ(field(wish(0, 3)), "prompt");
  EXPECT_EQ(field(wish(512, 3)), "prompt");
  Request r = wish(3, 3);
  r.prompt[1] = kVocab;
  EXPECT_EQ(field(r), "prompt");
  r.prompt[1] = -1;
  EXPECT_EQ(field(r), "prompt");
  EXPECT_EQ(field(wish(3, -1)), "max_tokens");
  r = wish(3, 3);
  r.sampling.temperature = NAN;
  EXPECT_EQ(field(r), "temperature");
  r = wish(3, 3);
  r.sampling.logit_bias = {{kVocab, 1.f}};
  EXPECT_EQ(field(r), "logit_bias");
  r = wish(3, 3);
  r.sampling.top_logprobs = 21;
  EXPECT_EQ(field(r), "logprobs");
}

TEST_P(EngineTest, TokensBeyondTheContextAreClamped) {
  make();
  TestClient client(*engine_, wish(511, 1000000));
  client.finish();
  EXPECT_EQ(client.ids.size(), 1u);
  EXPECT_EQ(client.reason, FinishReason::length);
}

TEST_P(EngineTest, AFullQueueRefuses) {
  Scene scene;
  scene.policy.max_queue = 3;
  scene.policy.max_running = 1;
  make(scene);
  runner_->hold();
  const int begun = runner_->begun();
  TestClient first(*engine_, wish(4, 4));
  runner_->await_begun(begun + 1);  // it runs, so it is not in the queue
  std::deque<TestClient> waiting;
  for (int i = 0; i < 3; ++i) waiting.emplace_back(*engine_, wish(4, 4));
  TestClient refused(*engine_, wish(4, 4));
  EXPECT_EQ(refused.error.code, ErrorCode::kResourceExhausted);
  runner_->let_go();
  first.finish();
  for (TestClient& c : waiting) {
    ASSERT_NE(c.stream, nullptr);
    c.finish();
  }
}

TEST_P(EngineTest, ABurstInOneLaneLeavesTheOthersPlacesInTheQueue) {
  Scene scene;
  scene.policy.max_queue = 16;
  scene.policy.max_running = 1;
  make(scene);
  runner_->hold();
  std::deque<TestClient> clients;
  const auto submit = [&](Lane lane) {
    Request r = wish(4, 4);
    r.lane = lane;
    return clients.emplace_back(*engine_, r).error.code != ErrorCode::kResourceExhausted;
  };
  for (int i = 0; i < 17; ++i) EXPECT_TRUE(submit(Lane::batch));
  EXPECT_FALSE(submit(Lane::batch));
  EXPECT_TRUE(submit(Lane::interactive));
  EXPECT_TRUE(submit(Lane::interactive));
  EXPECT_FALSE(submit(Lane::interactive)) << "an eighth of the queue";
  EXPECT_TRUE(submit(Lane::standard));
  runner_->let_go();
  for (TestClient& c : clients)
    if (c.stream) c.finish();
  expect_empty();
}

TEST_P(EngineTest, SchedulingIsReplacedWhileRequestsRun) {
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

TEST_P(EngineTest, AnAnswerThatIsCompleteEndsAsStopped) {
  make();
  runner_->hold();
  const int begun = runner_->begun();
  TestClient client(*engine_, wish(40, 100));
  runner_->await_begun(begun + 1);
  client.stream->cancel(FinishReason::stop);
  client.stream->cancel();  // the first word counts
  client.finish();
  EXPECT_EQ(client.reason, FinishReason::stop);
  runner_->let_go();
  expect_empty();
}

TEST_P(EngineTest, CancellingFreesWithinAStep) {
  make();
  runner_->hold();
  const int begun = runner_->begun();
  TestClient client(*engine_, wish(40, 100));
  runner_->await_begun(begun + 1);
  client.stream->cancel();
  client.finish();  // told at once, though its step is still in flight
  EXPECT_EQ(client.reason, FinishReason::cancelled);
  EXPECT_TRUE(client.ids.empty());
  runner_->let_go();
  expect_empty();
  EXPECT_LE(runner_->begun(), begun + 2);
}

TEST_P(EngineTest, ACancelStormLeavesNothing) {
  EngineMeters meters;
  const auto ended = [&] {
    uint64_t n =
        meters.rejected_full.value() + meters.rejected_invalid.value() + meters.rejected_draining.value();
    for (Counter* c : meters.finished) n += c ? c->value() : 0;
    return n;
  };
  const uint64_t started_before = meters.started.value(), ended_before = ended();
  Scene scene;
  scene.context = 128;
  scene.blocks = 90;
  scene.policy.max_queue = 8;
  make(scene);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random{uint32_t(t)};
      for (int i = 0; i < 150; ++i) {
        TestClient c(*engine_, wish(int(random() % 130), int(random() % 60), random() % 2));
        if (!c.stream) continue;
        for (uint32_t n = random() % 6; n > 0 && c.reason == FinishReason::none; --n) c.take(c.next());
        if (random() % 2) c.stream->cancel();
        if (random() % 2)
          c.finish();
        else
          c.stream->cancel();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  expect_empty();
  EXPECT_EQ(meters.started.value() - started_before, 450u);
  EXPECT_EQ(ended() - ended_before, 450u);
}

TEST_P(EngineTest, ASlowClientPausesItselfOnly) {
  make();
  EngineMeters meters;
  const uint64_t paused_before = meters.paused_steps.value();
  const Request slow = wish(5, 400);
  TestClient sleeper(*engine_, slow);
  std::deque<TestClient> others;
  for (int i = 0; i < 4; ++i) others.emplace_back(*engine_, wish(6 + i, 200));
  for (int i = 0; i < 4; ++i) {
    others[size_t(i)].finish();
    EXPECT_EQ(others[size_t(i)].ids, expected(wish(6 + i, 200)));
  }
  EXPECT_GT(meters.paused_steps.value(), paused_before);
  sleeper.finish();
  EXPECT_EQ(sleeper.ids, expected(slow));
  expect_empty();
}

TEST_P(EngineTest, NotificationsAreCoalesced) {
  make();
  const Request r = wish(5, 50);
  TestClient client(*engine_, r);
  // Nobody pops: one notification, however many events.
  engine_->drain(now_ns() + 60'000'000'000);
  EXPECT_EQ(client.notifications(), 1);
  client.finish();
  EXPECT_EQ(client.ids.size(), 50u);
}

TEST_P(EngineTest, DeadlinesHoldForWhatRunsAndWhatWaits) {
  Scene scene;
  scene.policy.max_running = 1;
  make(scene);
  runner_->hold();
  Request r = wish(5, 50);
  r.deadline = now_ns() + 1;
  TestClient late(*engine_, r);
  TestClient later(*engine_, r);
  runner_->let_go();
  late.finish();
  later.finish();
  EXPECT_EQ(late.reason, FinishReason::deadline);
  EXPECT_EQ(later.reason, FinishReason::deadline);
  expect_empty();
}

TEST_P(EngineTest, ADrainRefusesFinishesThenCancels) {
  make();
  const int begun = runner_->begun();
  runner_->hold();
  TestClient client(*engine_, wish(5, 400));
  runner_->await_begun(begun + 1);
  std::thread drainer([&] { engine_->drain(now_ns()); });
  client.finish();
  EXPECT_EQ(client.reason, FinishReason::cancelled);
  TestClient refused(*engine_, wish(5, 4));
  EXPECT_EQ(refused.error.code, ErrorCode::kUnavailable);
  runner_->let_go();
  drainer.join();
  EXPECT_EQ(engine_->status().blocks_used, 0);
  client.stream->cancel();  // after the end: nothing
  engine_.reset();
  client.stream->cancel();  // after the engine: nothing either
}

TEST_P(EngineTest, AWarmStepAllocatesNothing) {
  make();
  const auto burst = [&] {
    std::deque<TestClient> clients;
    for (int i = 0; i < 8; ++i) {
      Request r = wish(40 + i, 60, uint64_t(i));
      r.sampling.top_logprobs = 2;
      if (i == 3) r.sampling.presence_penalty = 0.5f;
      if (i == 5) r.sampling.prompt_top_logprobs = 1;
      clients.emplace_back(*engine_, r);
    }
    for (TestClient& c : clients) c.finish();
  };
  burst();
  const uint64_t before = engine_allocations();
  burst();
  EXPECT_EQ(engine_allocations(), before);
}

TEST_P(EngineTest, EveryBatchingPolicyAnswersTheSame) {
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
TEST_P(EngineTest, ABatchGathersUntilItIsFlushed) {
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

TEST(OneSequenceShareTest, IsOfRecentSteps) {
  OneSequenceShare share;
  EXPECT_EQ(share.after(1), 1);
  EXPECT_EQ(share.after(2), 0.5);
  EXPECT_EQ(share.after(9), 1.0 / 3);
  for (int i = 0; i < 20000; ++i) share.after(1);
  EXPECT_GT(share.after(1), 0.99);
}

TEST_P(EngineTest, TheNextStepIsBuiltWhileOneRuns) {
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

TEST_P(EngineTest, ABugShowsTheLastSteps) {
  make();
  TestClient client(*engine_, wish(70, 10));
  client.finish();
  engine_->drain(now_ns() + 60'000'000'000);
  EXPECT_DEATH(CHECK(false, "a bug"), "a bug.*\n(.*\n)*.*step 1: 32 tokens of 1 sequences");
}

TEST_P(EngineTest, StepsLeaveRecords) {
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

TEST_P(EngineTest, StepsOverlapOnADeviceBehindTheHost) {
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

TEST_P(EngineTest, CancellingBetweenTwoStepsUnderWay) {
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

TEST_P(EngineTest, ReplaysAreCountedAndAllIsRecordedAtStart) {
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

TEST_P(EngineTest, IdleTimeWithoutWorkIsNoGap) {
  make();
  TestClient first(*engine_, wish(5, 3));
  first.finish();
  engine_->drain(now_ns() + 60'000'000'000);
  const StepRecord r = engine_->step_ledger()->last(100)[0];
  EXPECT_LE(r.gap_ns, r.execute_at - r.planned_at) << "counted from its plan, not from the end of the warm-up";
}

// A fault found by the executor while two steps are under way, with the other threads alive and one of them
// waiting: the process ends and says what ran.
TEST_P(EngineTest, AFaultOfTheDeviceShowsTheStepsUnderWay) {
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

INSTANTIATE_TEST_SUITE_P(Devices, EngineTest,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host),
                         [](const auto& info) {
                           return std::string(info.param == FakeRunner::Device::in_launch ? "InLaunch"
                                                                                          : "BehindTheHost");
                         });

}  // namespace
}  // namespace sluice
