// What the engine does with requests.
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "engine/allocation_counter.h"
#include "engine/engine_fixture.h"
#include "engine/engine_meters.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

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

TEST_P(EngineTest, WhatIsEnqueuedIsTakenUpWhenTheBellRings) {
  make();
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) streams.push_back(*engine_->enqueue(wish(4 + i, 3), [] {}));
    engine_->ring();
  }
  engine_->drain(now_ns() + 600'000'000'000);
  for (const auto& stream : streams) {
    TokenEvent event;
    int tokens = 0;
    while (stream->pop(event)) ++tokens;
    EXPECT_EQ(tokens, 3);
    EXPECT_EQ(event.finish, FinishReason::length);
  }
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
  runner_->hold();  // all are there before the first is through, however busy the machine
  for (const Request& r : wishes) clients.emplace_back(*engine_, r);
  runner_->let_go();
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

// The same conversations with blocks that change their place while they are read, shared and kept; the fewer
// slots there are, the sooner.
TEST_P(EngineTest, ConvertedBlocksAreReadWhereTheyWentTo) {
  const KvTiering tierings[] = {{.stages = {{{KvTier::int8, 0}}}, .count = 1},
                                {.stages = {{{KvTier::int4, 0}}}, .count = 1},
                                {.stages = {{{KvTier::int8, 16}, {KvTier::int4, 60}}}, .count = 2}};
  for (const KvTiering& tiering : tierings) {
    for (const int blocks : {0, 130}) {
      Scene scene;
      scene.policy.prefix_cache = true;
      scene.context = 256;
      scene.blocks = blocks;
      scene.tiering = tiering;
      make(scene);
      std::vector<Request> wishes;
      for (int i = 0; i < 6; ++i) wishes.push_back(wish(30 + i, 40, uint64_t(i)));
      int cached = 0;
      for (int turn = 0; turn < 4; ++turn) {
        std::deque<TestClient> clients;
        for (const Request& r : wishes) clients.emplace_back(*engine_, r), clients.emplace_back(*engine_, r);
        for (size_t i = 0; i < clients.size(); ++i) {
          clients[i].finish();
          EXPECT_EQ(clients[i].ids, expected(wishes[i / 2])) << "turn " << turn << " request " << i / 2;
          cached += clients[i].stream->times().cached_tokens;
        }
        for (size_t i = 0; i < wishes.size(); ++i)
          wishes[i].prompt.insert(wishes[i].prompt.end(), clients[2 * i].ids.begin(), clients[2 * i].ids.end());
      }
      EXPECT_GT(cached, 500);
      expect_empty();
      engine_.reset();
    }
  }
}

// Whole contexts are reserved: what is there for one more is known at its admission, and shows as reserved.
TEST_P(EngineTest, WholeContextsAreReservedAtAdmission) {
  Scene scene;
  scene.context = 128;
  scene.whole_context = true;
  scene.blocks = 3 * 2 * 32;  // three requests, two groups
  make(scene);
  runner_->hold();
  std::deque<TestClient> clients;
  std::vector<Request> wishes;
  for (int i = 0; i < 8; ++i) wishes.push_back(wish(10 + i, 20, uint64_t(i)));
  for (const Request& r : wishes) clients.emplace_back(*engine_, r);
  runner_->let_go();
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].ids, expected(wishes[i]));
    EXPECT_EQ(clients[i].stream->times().preemptions, 0);
  }
  for (const StepRecord& r : engine_->step_ledger()->last(1000)) {
    EXPECT_EQ(r.blocks_used % 64, 0) << "a context's worth each";
    EXPECT_LE(r.running, 3);
  }
  expect_empty();
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

// Takes its place where another one serves.
TEST_P(EngineTest, GaugesAreOfTheEngineThatIsShown) {
  EngineMeters meters;
  meters.blocks_total.set(-1);
  Scene scene;
  scene.meters.gauges = false;
  make(scene);
  const uint64_t finished = meters.finished[size_t(FinishReason::length)]->value();
  TestClient(*engine_, wish(5, 3)).finish();
  EXPECT_EQ(meters.blocks_total.value(), -1);
  EXPECT_EQ(meters.finished[size_t(FinishReason::length)]->value(), finished + 1) << "counters are of all";
  engine_->show(true);
  while (meters.blocks_total.value() == -1) std::this_thread::yield();
  EXPECT_EQ(meters.blocks_total.value(), engine_->status().blocks_total);
}

TEST_P(EngineTest, MetersOfAPoolAreItsOwn) {
  const EngineMeters all, ours("canary");
  const uint64_t before = all.generated_tokens.value(), ours_before = ours.generated_tokens.value();
  Scene scene;
  scene.meters.pool = "canary";
  make(scene);
  TestClient(*engine_, wish(5, 3)).finish();
  EXPECT_EQ(all.generated_tokens.value(), before);
  EXPECT_EQ(ours.generated_tokens.value(), ours_before + 3);
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

// Whoever waits in a window when the server is told to end need not wait for others who will not come.
TEST_P(EngineTest, NobodyGathersWhoKnowsThatNobodyComes) {
  constexpr TimeNs kForEver = 3600'000'000'000;
  Scene scene;
  scene.policy.batching = {BatchingKind::windowed,
                           {.max_batch = 8, .max_wait_ns = kForEver, .idle_ns = 0, .span_ns = 0}};
  for (const bool by_drain : {false, true}) {
    make(scene);
    const Request r = wish(5, 4);
    TestClient client(*engine_, r);
    if (by_drain)
      engine_->drain(now_ns() + kForEver);
    else
      engine_->stop_gathering();
    client.finish();
    EXPECT_EQ(client.reason, FinishReason::length);
    EXPECT_EQ(client.ids, expected(r));
    expect_empty();
  }
}

// The numbers of the pool, and the setting, where that and not the model is what a prompt is too long for.
TEST(DescribeContext, SaysWhatShortensIt) {
  EngineInfo info;
  info.context = info.context_wanted = 2048, info.blocks = 128, info.block_tokens = 16;
  EXPECT_EQ(describe_context(info), "the context of this model is 2048 tokens");
  info.context = 512, info.blocks = 32;
  EXPECT_EQ(
      describe_context(info),
      "the context is 512 tokens and not 2048, since the 32 blocks of 16 tokens that keys and values have "
      "hold no more (engine.kv_bytes)");
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
  Scene scene;
  scene.tiering = {.stages = {{{KvTier::int8, 16}, {KvTier::int4, 60}}}, .count = 2};
  make(scene);
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
INSTANTIATE_TEST_SUITE_P(Devices, EngineTest,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host),
                         device_name);

}  // namespace
}  // namespace sluice
