// A request's account of itself: its spans, and what each of its tokens cost.
#include <gtest/gtest.h>

#include <deque>

#include "engine/fake_runner.h"
#include "engine/make_engine.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

constexpr int kVocab = 1000, kBlock = 4, kContext = 512;

class RequestLedgerTest : public testing::TestWithParam<FakeRunner::Device> {
 protected:
  void make(const Policy& policy, int blocks = 0) {
    const KvLayout layout{
        .block_tokens = kBlock, .windows = {0}, .max_length = kContext, .max_step_tokens = policy.step_tokens};
    EngineInfo info;
    info.spec.vocab = kVocab;
    info.context = kContext;
    info.blocks = blocks ? blocks : layout.peak_blocks(kContext) * policy.max_running;
    auto runner = std::make_unique<FakeRunner>(layout, info.blocks, policy.max_running, kVocab, GetParam());
    runner_ = runner.get();
    const bool replay = GetParam() == FakeRunner::Device::behind_the_host;
    engine_ =
        make_engine(std::move(info), policy, layout, ModelCost{}, std::move(runner), {.prompts = {3}}, replay);
  }
  void TearDown() override {
    if (engine_) runner_->let_go();
  }
  static Request wish(int prompt, int max_tokens) {
    Request r;
    for (int i = 0; i < prompt; ++i) r.prompt.push_back(i % kVocab);
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }
  static std::vector<TokenEvent> all_events(TestClient& client) {
    std::vector<TokenEvent> events;
    while (client.reason == FinishReason::none) {
      events.push_back(client.next());
      client.take(events.back());
    }
    return events;
  }
  // Its spans, which add up to the time from submission to its last event, to the nanosecond.
  static SpanTimes spans_of(const TestClient& client) {
    const SpanClock::Reading r = client.stream->progress().spans.read(now_ns());
    const RequestTimes& t = client.stream->times();
    EXPECT_TRUE(r.ended);
    EXPECT_EQ(r.began, t.submitted);
    EXPECT_EQ(r.spans.total(), t.finished - t.submitted);
    return r.spans;
  }

  FakeRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Devices, RequestLedgerTest,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host));

TEST_P(RequestLedgerTest, ARequestAloneIsComputedAndNothingElse) {
  make({.max_running = 4, .step_tokens = 32, .max_queue = 8});
  TestClient client(*engine_, wish(100, 10));
  const std::vector<TokenEvent> events = all_events(client);
  const SpanTimes spans = spans_of(client);
  const RequestTimes& t = client.stream->times();
  EXPECT_EQ(spans[Span::queue], t.admitted - t.submitted);
  EXPECT_GT(spans[Span::prefix_lookup], 0);
  EXPECT_GT(spans[Span::prefill], 0);
  EXPECT_GT(spans[Span::decode], 0);
  EXPECT_EQ(spans[Span::preempted] + spans[Span::recompute] + spans[Span::paused], 0);
  EXPECT_EQ(client.stream->progress().steps.load(), t.steps);
  ASSERT_EQ(events.size(), 10u);
  EXPECT_FLOAT_EQ(events[0].kv_hit, 0);  // nothing of its prompt was cached
  for (size_t i = 1; i < events.size(); ++i) EXPECT_FLOAT_EQ(events[i].kv_hit, 1 - 1.0f / float(100 + i));
}

TEST_P(RequestLedgerTest, WhoWaitsForASeatIsQueued) {
  make({.max_running = 1, .step_tokens = 32, .max_queue = 8});
  TestClient first(*engine_, wish(10, 200)), second(*engine_, wish(10, 2));
  first.finish();
  second.finish();
  const SpanTimes spans = spans_of(second);
  EXPECT_EQ(spans[Span::queue], second.stream->times().admitted - second.stream->times().submitted);
  EXPECT_GE(second.stream->times().admitted, first.stream->times().first_token);
}

TEST_P(RequestLedgerTest, PenaltiesTakeEveryOtherStepWhereTwoOverlap) {
  make({.max_running = 4, .step_tokens = 32, .max_queue = 8});
  Request r = wish(10, 50);
  r.sampling.presence_penalty = 1;
  TestClient careful(*engine_, r), other(*engine_, wish(10, 300));
  careful.finish();
  other.finish();
  EXPECT_GT(spans_of(careful)[Span::decode_wait], 0);
}

TEST_P(RequestLedgerTest, APreemptionAndWhatItCostStandApart) {
  make({.max_running = 4, .step_tokens = 64, .max_queue = 16, .min_progress = 4}, kContext / kBlock + 2);
  std::deque<TestClient> clients;
  runner_->hold();  // all are there before the first is through, however busy the machine
  for (int i = 0; i < 4; ++i) clients.emplace_back(*engine_, wish(40, 200));
  runner_->let_go();
  int preempted = 0;
  for (TestClient& client : clients) {
    const std::vector<TokenEvent> events = all_events(client);
    const SpanTimes spans = spans_of(client);
    const RequestTimes& t = client.stream->times();
    preempted += t.preemptions > 0;
    EXPECT_EQ(t.preemptions > 0, spans[Span::preempted] > 0);
    EXPECT_EQ(t.preemptions > 0, spans[Span::recompute] > 0);
    int computed_anew = 0;
    for (size_t i = 1; i < events.size(); ++i) computed_anew += events[i].kv_hit < 0.5f;
    EXPECT_EQ(computed_anew, t.preemptions);
  }
  EXPECT_GT(preempted, 0);
}

TEST_P(RequestLedgerTest, AClientThatDoesNotReadPausesItself) {
  make({.max_running = 4, .step_tokens = 32, .max_queue = 8});
  runner_->hold();
  TestClient slow(*engine_, wish(5, 400)), other(*engine_, wish(6, 300));
  // A few steps ahead of the reader and no more: a busy machine may keep this thread waiting.
  runner_->release(4);
  for (int i = 0; i < 300; ++i) {
    runner_->release();
    other.take(other.next());
  }
  runner_->let_go();
  slow.finish();
  EXPECT_GT(spans_of(slow)[Span::paused], 0);
  EXPECT_EQ(spans_of(other)[Span::paused], 0);
}

TEST_P(RequestLedgerTest, CancelledInTheQueueIsAllQueue) {
  make({.max_running = 1, .step_tokens = 32, .max_queue = 8});
  TestClient first(*engine_, wish(10, 400)), second(*engine_, wish(10, 2));
  first.take(first.next());
  second.stream->cancel();
  second.finish();
  EXPECT_EQ(second.reason, FinishReason::cancelled);
  const SpanTimes spans = spans_of(second);
  EXPECT_EQ(spans[Span::queue], spans.total());
  first.stream->cancel();
  first.finish();
  spans_of(first);
}

TEST_P(RequestLedgerTest, SpansOfARunningRequestCanBeRead) {
  make({.max_running = 1, .step_tokens = 32, .max_queue = 8});
  TestClient client(*engine_, wish(10, 100));
  client.take(client.next());
  const TimeNs now = now_ns();
  const SpanClock::Reading r = client.stream->progress().spans.read(now);
  if (!r.ended) {
    EXPECT_GE(r.until(), now);
  }
  EXPECT_GT(r.spans[Span::prefill], 0);
  client.finish();
  spans_of(client);
}

}  // namespace
}  // namespace sluice
