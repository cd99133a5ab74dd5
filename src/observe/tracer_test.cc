// Which requests leave a trace, what is exported of them, and what becomes of it when the collector is away.
#include "observe/tracer.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;

// A collector that answers as the test says, and keeps what it took.
struct Collector {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<TraceSink::Outcome> script;  // of the next posts; then taken
  std::vector<std::string> took;
  size_t posts = 0;

  void wait_posts(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return posts >= count; });
  }
};

class FakeSink final : public TraceSink {
 public:
  explicit FakeSink(Collector& collector) : collector_(collector) {}
  Answer post(const std::string& body) override {
    std::lock_guard lock(collector_.mutex);
    const size_t i = collector_.posts++;
    collector_.changed.notify_all();
    const Outcome outcome = i < collector_.script.size() ? collector_.script[i] : Outcome::taken;
    if (outcome == Outcome::taken) collector_.took.push_back(body);
    return {outcome, outcome == Outcome::taken ? "" : "so says the test"};
  }

 private:
  Collector& collector_;
};

std::shared_ptr<RequestAccount> account(bool sampled, TimeNs total = 10 * kMs) {
  auto a = std::make_shared<RequestAccount>();
  a->request_id = "req-1";
  a->answer_id = "chatcmpl-1";
  a->model = "toy";
  a->route = "/v1/chat/completions";
  a->trace = begin_trace("", "", 0);
  a->trace.sampled = sampled;
  a->started_at = 1.8e9;
  a->began = 1000 * kMs;
  a->finished = a->began + total;
  a->opened = a->finished;
  a->status = 200;
  a->ended = "completed";
  ChoiceAccount choice;
  choice.submitted = a->began + 1 * kMs;
  choice.spans[Span::read] = 1 * kMs;
  choice.spans[Span::queue] = 1 * kMs;
  choice.spans[Span::prefill] = 3 * kMs;
  choice.spans[Span::decode] = 4 * kMs;
  choice.first_token = a->began + 5 * kMs;
  choice.engine_end = a->began + 9 * kMs;
  choice.finish_reason = "stop";
  choice.generated = 3;
  a->choices.push_back(choice);
  return a;
}

TracingSettings quick() {
  TracingSettings settings;
  settings.export_interval_ms = 1;
  return settings;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

uint64_t dropped(const char* reason) {
  return meter::counter("sluice_traces_dropped_total", "", std::string("reason=\"") + reason + "\"").value();
}

TEST(Tracer, KeepsWhatIsSampledAndWhatWentWrongOrTookLong) {
  Collector collector;
  Tracer tracer(quick(), std::make_unique<FakeSink>(collector));
  KeptBy why{};
  EXPECT_FALSE(tracer.keeps(*account(false), why));
  EXPECT_TRUE(tracer.keeps(*account(true), why));
  EXPECT_EQ(why, KeptBy::ratio);
  EXPECT_TRUE(tracer.keeps(*account(false, 30001 * kMs), why));
  EXPECT_EQ(why, KeptBy::slow);
  EXPECT_FALSE(tracer.keeps(*account(false, 30000 * kMs), why));

  for (const char* ended : {"deadline", "engine", "shutdown", "write_timeout"}) {
    auto failed = account(false);
    failed->ended = ended;
    EXPECT_TRUE(tracer.keeps(*failed, why)) << ended;
    EXPECT_EQ(why, KeptBy::error);
  }
  auto left = account(false);  // the client's decision
  left->ended = "client_disconnect";
  EXPECT_FALSE(tracer.keeps(*left, why));

  auto refused = account(false);
  refused->choices.clear();
  refused->status = 429;
  EXPECT_TRUE(tracer.keeps(*refused, why));
  refused->status = 400;
  EXPECT_FALSE(tracer.keeps(*refused, why));

  auto of_parent = account(true);
  of_parent->trace.parent_id[0] = 1;
  EXPECT_TRUE(tracer.keeps(*of_parent, why));
  EXPECT_EQ(why, KeptBy::parent);
}

TEST(Tracer, OffItTracesOnlyForCallersThatAsk) {
  Tracer off(TracingSettings{}, nullptr);
  EXPECT_FALSE(off.begin("", ""));
  EXPECT_FALSE(off.begin("nonsense", ""));
  const TraceContext c = off.begin("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b");
  EXPECT_TRUE(c);
  auto a = account(true);
  KeptBy why{};
  EXPECT_FALSE(off.keeps(*a, why));
}

TEST(Tracer, WhatWaitsIsExportedAtTheEnd) {
  Collector collector;
  TracingSettings slow = quick();
  slow.export_interval_ms = 3'600'000;
  slow.service_name = "under-test";
  slow.resource_attributes = {"deployment.environment=lab"};
  Tracer tracer(slow, std::make_unique<FakeSink>(collector));
  tracer.finish(account(true));
  tracer.finish(account(false));
  tracer.finish(account(true));
  tracer.stop();
  ASSERT_EQ(collector.took.size(), 1u);
  const std::string& body = collector.took[0];
  EXPECT_EQ(count(body, "chat toy"), 2u);
  for (const char* span : {"accept", "queue", "prefill", "decode", "stream"})
    EXPECT_EQ(count(body, std::string("\x2a") + char(std::string(span).size()) + span), 2u) << span;  // field 5
  EXPECT_EQ(count(body, "under-test"), 1u);
  EXPECT_EQ(count(body, "deployment.environment"), 1u);
  tracer.finish(account(true));  // too late, and without effect
  EXPECT_EQ(collector.posts, 1u);
}

TEST(Tracer, ABatchIsTriedAgainUntilItIsTaken) {
  Collector collector;
  collector.script = {TraceSink::Outcome::unreachable, TraceSink::Outcome::busy};
  const uint64_t before = dropped("unreachable");
  Tracer tracer(quick(), std::make_unique<FakeSink>(collector), 1);
  tracer.finish(account(true));
  collector.wait_posts(3);
  tracer.stop();
  EXPECT_EQ(collector.posts, 3u);
  EXPECT_EQ(collector.took.size(), 1u);
  EXPECT_EQ(dropped("unreachable"), before);
}

TEST(Tracer, WhatIsRefusedForGoodOrTooOftenIsDroppedAndCounted) {
  Collector collector;
  collector.script.assign(Tracer::kAttempts, TraceSink::Outcome::unreachable);
  collector.script.push_back(TraceSink::Outcome::refused);
  const uint64_t unreachable = dropped("unreachable"), refused = dropped("refused");
  Tracer tracer(quick(), std::make_unique<FakeSink>(collector), 1);
  tracer.finish(account(true));
  collector.wait_posts(Tracer::kAttempts);
  tracer.finish(account(true));
  collector.wait_posts(Tracer::kAttempts + 1);
  tracer.stop();
  EXPECT_EQ(collector.posts, size_t(Tracer::kAttempts) + 1);
  EXPECT_EQ(dropped("unreachable"), unreachable + 1);
  EXPECT_EQ(dropped("refused"), refused + 1);
  EXPECT_TRUE(collector.took.empty());
}

TEST(Tracer, TheQueueIsBoundedAndSaysWhatItDropped) {
  Collector collector;
  TracingSettings settings = quick();
  settings.export_interval_ms = 3'600'000;
  settings.queue_requests = 2;
  const uint64_t before = dropped("queue_full");
  Tracer tracer(settings, std::make_unique<FakeSink>(collector));
  for (int i = 0; i < 5; ++i) tracer.finish(account(true));
  tracer.stop();
  EXPECT_EQ(dropped("queue_full"), before + 3);
  ASSERT_EQ(collector.took.size(), 1u);
  EXPECT_EQ(count(collector.took[0], "chat toy"), 2u);
}

TEST(Tracer, SettingsAreCheckedAtStart) {
  TracingSettings settings;
  settings.endpoint = "https://collector";
  EXPECT_EQ(Tracer::create(settings).error().field, "tracing.endpoint");
  settings.endpoint = "http://collector";
  settings.protocol = "http/json";
  EXPECT_EQ(Tracer::create(settings).error().field, "tracing.protocol");
  settings.protocol = "grpc";
  for (const char* header : {"te x=x", ":path=/", "TE=trailers", "Content-Type=text/plain"}) {
    settings.headers = {header};
    EXPECT_EQ(Tracer::create(settings).error().field, "tracing.headers") << header;
  }
  settings.headers.clear();
  settings.headers = {"no-equals"};
  EXPECT_EQ(Tracer::create(settings).error().field, "tracing.headers");
  settings.headers = {};
  settings.resource_attributes = {"=x"};
  EXPECT_EQ(Tracer::create(settings).error().field, "tracing.resource_attributes");
}

}  // namespace
}  // namespace sluice
