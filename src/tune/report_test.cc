#include "tune/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "server/json.h"
#include "tune/page.h"

namespace sluice::tune {
namespace {

using testing::HasSubstr;
using testing::Not;

Tried tried(const std::string& name, double qps, const std::string& policy) {
  Tried t;
  t.name = name;
  t.run.configuration.model = "a<b>&.gguf";
  t.run.configuration.set("scheduler.policy", policy);
  t.run.concurrency = 4, t.run.load_s = 10;
  for (int i = 1; i < int(qps * 10); ++i)
    t.run.requests.push_back({std::max(0.0, i / qps - 4 / qps), i / qps, i / qps, 10, Request::End::completed});
  t.run.batches = {{1, 10}, {4, 30}};
  t.run.steps = 40, t.run.steps_of_one = 10;
  t.run.diagnosis =
      R"({"findings":[{"cause":"host-bound","text":"a <script> & more","lost":0.2}],"seen":{"bandwidth_share":0.5}})";
  t.run.attribution =
      R"({"requests":3,"spans":[{"name":"queue","mean_ms":12,"share":0.7},{"name":"decode","mean_ms":5,"share":0.3}]})";
  t.figures = figures_of(t.run);
  return t;
}

Session session() {
  Session s;
  s.steps.push_back(
      {.name = "start", .title = "The start", .measured = true, .kept = true, .reason = "where it begins"});
  s.steps.back().tried.push_back(tried("start", 10, "serial"));
  s.steps.push_back(
      {.name = "batching", .title = "Batches", .measured = true, .kept = true, .reason = "faster"});
  s.steps.back().tried.push_back(tried("windows", 20, "windowed"));
  s.steps.back().tried.push_back(tried("other", 15, "windowed"));
  s.steps.back().named_before = "batch-policy-mismatch";
  s.steps.push_back({.name = "kv", .title = "KV", .reason = "left out: the budget of 9 s is spent"});
  s.final_step = 1;
  s.left_out = {"kv (paged)"};
  s.long_before = {{4096, 80, 100, 0}};
  s.long_after = {{4096, 120, 50, 0.5}};
  return s;
}

ReportFacts facts() {
  return {.model = "a<b>&.gguf",
          .device = "2 threads",
          .load = "concurrency 4",
          .date = "2026-12-01T00:00:00Z",
          .command = "sluice tune m",
          .load_command = "sluice bench serve",
          .accuracy = "",
          .order = {"batching", "kv"},
          .slo = {},
          .budget_s = 9};
}

TEST(Report, ResultHasTheFiguresOfEveryStep) {
  const Session s = session();
  const auto document = JsonDocument::parse(result_json(facts(), s));
  ASSERT_TRUE(document);
  const JsonView steps = *document->root().find("steps");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(*steps.at(1).find("name")->string(), "batching");
  EXPECT_EQ(*steps.at(1).find("kept")->boolean(), true);
  EXPECT_NEAR(*steps.at(1).find("qps")->number(), 20, 0.2);
  EXPECT_NEAR(*steps.at(1).find("output_tok_s")->number(), s.steps[1].chosen().figures.tok_s.mean, 1e-9);
  EXPECT_NEAR(*steps.at(1).find("p95_ms")->number(), 200, 2);
  EXPECT_EQ(steps.at(1).find("others")->size(), 1u);
  EXPECT_THAT(std::string(*steps.at(1).find("command")->string()),
              HasSubstr("--set scheduler.policy=windowed"));
  EXPECT_TRUE(steps.at(2).find("qps")->is_null());
  EXPECT_NEAR(*document->root().find("final")->find("qps_gain_percent")->number(), 100, 2);
}

TEST(Report, TheTableSaysWhatWasKeptAndWhatWasLeftOut) {
  const std::string text = table(facts(), session());
  for (const char* part : {"batching", "kept", "the budget of 9 s is spent", "named batch-policy-mismatch",
                           "+100.0 %", "124.6, 98.2 %", "left out", "kv (paged)"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Report, AnSloThatWasMissedNamesWhatCameNearest) {
  ReportFacts f = facts();
  f.slo = *parse_slo("p95_ms<100");
  EXPECT_THAT(missed_slo(f, session()), HasSubstr("the nearest came to p95_ms 200 ms"));
  f.slo = *parse_slo("p95_ms<1000");
  EXPECT_EQ(missed_slo(f, session()), "");
}

TEST(Report, ChangesAreSaidInPercentAndThenAsFactors) {
  EXPECT_EQ(change(4.647), "+364.7 %");
  EXPECT_EQ(change(0.232), "-76.8 %");
  EXPECT_EQ(change(12.34), "x12.3");
  EXPECT_EQ(change(NAN), "-");
}

TEST(Orders, OfEachTheNewestIsKept) {
  const std::string path = testing::TempDir() + "/orders" + std::to_string(getpid());
  std::remove(path.c_str());
  OrderedGains first{{"batching", "kv"}, {{"batching", true, 2}, {"kv", false, NAN}}, 2},
      second{{"kv", "batching"}, {}, 3};
  ASSERT_TRUE(remember_gains(path, first));
  ASSERT_TRUE(remember_gains(path, second));
  first.total = 4;
  const auto all = remember_gains(path, first);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].total, 4);
  ReportFacts f = facts();
  f.orders = *all;
  EXPECT_THAT(table(f, session()), HasSubstr("+300.0 % in all: batching +100.0 %, (kv -)"));
  EXPECT_THAT(page(f, session()), HasSubstr("By the order of the steps"));
  EXPECT_THAT(page(facts(), session()), Not(HasSubstr("By the order of the steps")));
  std::remove(path.c_str());
}

TEST(Page, NeedsNothingButItself) {
  const std::string html = page(facts(), session());
  for (const char* part : {"http://", "https://", "<script", "<link", "<img", "src=", "url(", "@import"})
    EXPECT_THAT(html, Not(HasSubstr(part)));
}

TEST(Page, ShowsWhatWasMeasuredAndEscapesWhatItQuotes) {
  const std::string html = page(facts(), session());
  for (const char* part : {"a&lt;b&gt;&amp;.gguf", "What each step gave", "Sequences in a step"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_THAT(html, HasSubstr("a &lt;script&gt; &amp; more"));
  EXPECT_THAT(html, HasSubstr("20.0"));
  EXPECT_THAT(html, HasSubstr("host-bound"));
  EXPECT_THAT(html, HasSubstr("queue 70.0 %"));
  EXPECT_THAT(html, HasSubstr("the budget of 9 s is spent"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace sluice::tune
