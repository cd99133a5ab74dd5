#include "observe/request_log.h"

#include <gtest/gtest.h>

#include "observe/attribution.h"

namespace sluice {
namespace {

RequestAccount account(const std::string& id, TimeNs began, SpanTimes spans, uint32_t tenant = 0) {
  RequestAccount a;
  a.request_id = "req-" + id;
  a.answer_id = "cmpl-" + id;
  a.tenant = tenant;
  a.began = began;
  a.finished = began + spans.total();
  a.choices.emplace_back().spans = spans;
  return a;
}

SpanTimes times(TimeNs queue, TimeNs prefill, TimeNs decode) {
  SpanTimes t;
  t[Span::queue] = queue;
  t[Span::prefill] = prefill;
  t[Span::decode] = decode;
  return t;
}

TEST(RequestLog, FindsByEitherIdTheNewestOfThatName) {
  RequestLog log;
  log.finish(nullptr, account("a", 1, times(1, 2, 3)), {{{.id = 7}}});
  log.finish(nullptr, account("b", 5, times(1, 2, 3)), {});
  log.finish(nullptr, account("a", 9, times(1, 2, 3)), {});
  EXPECT_EQ(log.find("req-a")->account->began, 9);
  EXPECT_EQ(log.find("cmpl-b")->account->began, 5);
  EXPECT_FALSE(log.find("cmpl-c"));
  EXPECT_FALSE(log.find(""));
  const auto recent = log.recent(2);
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0].account->began, 9);
  EXPECT_EQ(recent[1].account->answer_id, "cmpl-b");
}

TEST(RequestLog, KeepsTheLastThousand) {
  RequestLog log;
  for (int i = 0; i < 1500; ++i) log.finish(nullptr, account(std::to_string(i), i, times(1, 1, 1)), {});
  EXPECT_EQ(log.recent(5000).size(), RequestLog::kRequests);
  EXPECT_FALSE(log.find("req-499"));
  EXPECT_TRUE(log.find("req-500"));
}

TEST(RequestLog, TokensOfTheOldestGiveWay) {
  RequestLog log;
  const size_t fit = RequestLog::kTokens / RequestLog::kTokensOfRequest;
  const TokenLists many = {std::vector<TokenAccount>(RequestLog::kTokensOfRequest)};
  for (size_t i = 0; i < fit + 2; ++i) log.finish(nullptr, account(std::to_string(i), 1, times(1, 1, 1)), many);
  EXPECT_EQ(log.find("req-1")->tokens, nullptr);
  EXPECT_EQ(log.find("req-1")->account->began, 1);  // its spans stay
  EXPECT_NE(log.find("req-2")->tokens, nullptr);
}

TEST(RequestLog, ATenantSeesItsOwn) {
  RequestLog log;
  log.finish(nullptr, account("a", 1, times(1, 1, 1), 1), {});
  log.finish(nullptr, account("b", 2, times(1, 1, 1), 2), {});
  EXPECT_TRUE(log.find("req-a", 1));
  EXPECT_FALSE(log.find("req-a", 2));
  EXPECT_TRUE(log.find("req-a", 0));
  EXPECT_EQ(log.recent(10, 2).size(), 1u);
}

TEST(RequestLog, ARunningRequestIsFoundUntilItFinishes) {
  RequestLog log;
  auto running = std::make_shared<RunningRequest>();
  running->head.request_id = "req-a";
  const RunningRequest* key = running.get();
  log.begin(std::move(running));
  EXPECT_TRUE(log.find_running("req-a"));
  EXPECT_FALSE(log.find_running("req-b"));
  log.finish(key, account("a", 1, times(1, 1, 1)), {});
  EXPECT_FALSE(log.find_running("req-a"));
  EXPECT_TRUE(log.find("req-a"));
}

TEST(RequestLog, SpansAreSummedInTheMeters) {
  RequestLog log;
  const auto value = [] {
    for (const Meter& m : meter::all()) {
      if (m.name == "sluice_request_span_seconds_total" && m.labels == "span=\"queue\"")
        return double(m.counter->value()) * m.unit;
    }
    return -1.0;
  };
  const double before = value();
  ASSERT_GE(before, 0);
  log.finish(nullptr, account("a", 1, times(2'000'000'000, 1, 1)), {});
  EXPECT_NEAR(value() - before, 2.0, 1e-9);
}

TEST(Attribution, SharesAreOfTheWindowAndOfItsSlowest) {
  RequestLog log;
  log.finish(nullptr, account("old", 0, times(100, 0, 0)), {});
  for (int i = 0; i < 19; ++i) log.finish(nullptr, account("fast", 1000, times(0, 4, 6)), {});
  log.finish(nullptr, account("slow", 1000, times(800, 4, 6)), {});
  const auto kept = log.recent(RequestLog::kRequests);
  const WindowAttribution w = attribution_of(kept, 1000);
  EXPECT_EQ(w.all.requests, 20);
  EXPECT_EQ(w.all.total, 20 * 10 + 800);
  EXPECT_EQ(w.all.spans.total(), w.all.total);
  EXPECT_DOUBLE_EQ(w.all.share(Span::queue), 0.8);
  EXPECT_DOUBLE_EQ(w.all.share(Span::decode), 0.12);
  EXPECT_EQ(w.slowest.requests, 1);
  EXPECT_EQ(w.slowest.spans[Span::queue], 800);
  EXPECT_EQ(attribution_of(kept, 5000).all.requests, 0);
  EXPECT_EQ(attribution_of(kept, 5000).all.share(Span::queue), 0);
  EXPECT_EQ(attribution_of({}, 0).slowest.requests, 0);
}

}  // namespace
}  // namespace sluice
