#include "tune/run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tune/run_file.h"
#include "tune/slo.h"

namespace sluice::tune {
namespace {

// `clients` in a closed loop, served all together: every `batch_s` all of them have their answers.
Run batches(int clients, double batch_s, double load_s) {
  Run run;
  run.concurrency = clients, run.load_s = load_s;
  for (int b = 0; (b + 1) * batch_s <= load_s; ++b)
    for (int c = 0; c < clients; ++c)
      run.requests.push_back(
          {b * batch_s, (b + 0.5) * batch_s, (b + 1) * batch_s, 10, Request::End::completed});
  return run;
}

// One after the other, while all wait.
Run serial(int clients, double each_s, double load_s) {
  Run run;
  run.concurrency = clients, run.load_s = load_s;
  std::vector<double> sent(size_t(clients), 0);
  double now = 0;
  for (size_t i = 0; now + each_s <= load_s; ++i) {
    const size_t client = i % sent.size();
    run.requests.push_back({sent[client], now, now + each_s, 10, Request::End::completed});
    now += each_s;
    sent[client] = now;
  }
  for (const double s : sent) run.requests.push_back({s, -1, load_s, 0, Request::End::open});
  return run;
}

TEST(Run, BatchesThatEndTogetherAreCountedWhole) {
  // Windows of 1.9 s would hold two batches or one.
  const Figures f = figures_of(batches(8, 1, 10.5));
  EXPECT_NEAR(f.qps.mean, 8, 1e-9);
  EXPECT_NEAR(f.tok_s.mean, 80, 1e-9);
  for (const double qps : f.qps_samples) EXPECT_NEAR(qps, 8, 1e-9);
  EXPECT_NEAR(f.warm_up_s, 1, 1e-9);
  EXPECT_EQ(f.completed, 8 * 9);
  EXPECT_NEAR(f.p95_ms.mean, 1000, 1e-6);
  EXPECT_FALSE(f.p95_at_least);
}

TEST(Run, BatchesWhoseAnswersEndOneAfterTheOtherAreCountedWholeToo) {
  // Every 4 s 128 requests, which end over 1.4 s: a third of the time, and windows would be 2 s long.
  tune::Run run;
  run.concurrency = 128, run.load_s = 13.7;
  for (int b = 0; b < 4; ++b)
    for (int c = 0; c < 128; ++c) {
      const double ended = 4 * b + 2.6 + 1.4 * c / 127, sent = b == 0 ? 0 : ended - 4;
      const bool open = ended > run.load_s;
      run.requests.push_back({sent, ended - 1, open ? run.load_s : ended, 128,
                              open ? Request::End::open : Request::End::completed});
    }
  const Figures f = figures_of(run);
  ASSERT_EQ(f.windows.size(), 2u);
  for (const double qps : f.qps_samples) EXPECT_NEAR(qps, 32, 1e-6);
  EXPECT_NEAR(f.tok_s.mean, 32 * 128, 1e-6);
  EXPECT_LT(f.qps.high - f.qps.low, 1e-6);
}

TEST(Run, RequestsThatWaitStillCountWithWhatTheyHaveWaited) {
  // 100 clients, one of whom is served a second: after 30 s nobody has come a second time.
  const Figures f = figures_of(serial(100, 1, 30));
  EXPECT_NEAR(f.warm_up_s, 10, 1e-9);  // a third: the first round takes longer than the whole load
  EXPECT_NEAR(f.qps.mean, 1, 1e-9);
  EXPECT_TRUE(f.p95_at_least);
  EXPECT_NEAR(f.p95_ms.mean, 30000, 1);
  EXPECT_EQ(f.open, 100);
}

TEST(Run, OpenRequestsOfASteadyLoadChangeNothing) {
  tune::Run run = serial(2, 0.1, 20);
  const Figures f = figures_of(run);
  EXPECT_FALSE(f.p95_at_least);
  EXPECT_NEAR(f.p95_ms.mean, 200, 1);
  EXPECT_NEAR(f.qps.mean, 10, 0.01);
}

TEST(Run, FailedRequestsAreCountedAndNoLatencyComesOfThem) {
  tune::Run run = batches(4, 1, 10.5);
  run.requests[20].end = Request::End::failed;
  const Figures f = figures_of(run);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.completed, 4 * 9 - 1);
}

TEST(Run, NothingThatEndedMakesNoFigures) {
  tune::Run run;
  run.concurrency = 4, run.load_s = 3;
  run.requests.push_back({0, -1, 3, 0, Request::End::open});
  const Figures f = figures_of(run);
  EXPECT_EQ(f.completed, 0);
  EXPECT_TRUE(std::isnan(f.qps.mean));
  EXPECT_TRUE(std::isnan(figures_of(tune::Run{}).qps.mean));
}

TEST(RunFile, ALineGivesTheRunBack) {
  tune::Run run = batches(3, 0.5, 4);
  run.configuration.model = "dummy:llama-3.1-8b:bf16";
  run.configuration.set("scheduler.policy", "serial");
  run.load = "concurrency 3", run.device = "2 threads, amx", run.ready_s = 1.5;
  run.steps = 7, run.steps_of_one = 3, run.prefix_looked_up = 10, run.prefix_found = 5;
  run.between_tokens_ms = {1, 2, 3};
  run.batches = {{1, 3}, {0, 4}};
  run.long_contexts = {{4096, 12.5, 100, 0.5}};
  run.diagnosis = R"({"findings":[]})";
  const Result<tune::Run> read = from_line(to_line(run));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(to_line(*read), to_line(run));
  EXPECT_EQ(read->configuration, run.configuration);
  EXPECT_EQ(figures_of(*read).qps_samples, figures_of(run).qps_samples);
}

TEST(RunFile, AWriteThatWasCutShortIsLeftOut) {
  const std::string path = testing::TempDir() + "/runs" + std::to_string(getpid());
  std::remove(path.c_str());
  EXPECT_TRUE(read_runs(path)->empty());
  ASSERT_TRUE(append_run(path, batches(2, 1, 4)));
  std::ofstream(path, std::ios::app) << R"({"sluice_run":1,"model":"x)";
  ASSERT_TRUE(append_run(path, batches(2, 1, 8)));
  const Result<std::vector<tune::Run>> runs = read_runs(path);
  ASSERT_TRUE(runs);
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ((*runs)[1].load_s, 8);
  std::ofstream(path, std::ios::app) << "{\"sluice_run\":99}\n";
  const Result<std::vector<tune::Run>> other = read_runs(path);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find(path), std::string::npos);
  std::remove(path.c_str());
}

TEST(Slo, IsReadAndRefused) {
  const auto slo = parse_slo("p95_ms<1200,ttft_p99_ms<300.5,itl_p50_ms<20");
  ASSERT_TRUE(slo);
  EXPECT_EQ(describe(*slo), "p95_ms<1200,ttft_p99_ms<300.5,itl_p50_ms<20");
  EXPECT_TRUE(parse_slo("")->empty());
  for (const char* bad :
       {"p95<3", "p95_ms", "p95_ms<", "p95_ms<x", "p95_ms<-1", "p95_ms<0", "p95_ms>3", "<3"}) {
    const auto refused = parse_slo(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_NE(refused.error().message.find("--slo"), std::string::npos);
  }
}

TEST(Slo, TheWorstOneDecides) {
  tune::Run run = batches(8, 1, 10.5);
  run.between_tokens_ms = {10, 20, 30};
  const Figures f = figures_of(run);
  EXPECT_NEAR(excess(*parse_slo("p95_ms<2000"), run, f), 0.5, 1e-9);
  EXPECT_NEAR(excess(*parse_slo("p95_ms<2000,itl_p99_ms<10"), run, f), 3, 1e-9);
  EXPECT_EQ(excess({}, run, f), 0);
  EXPECT_TRUE(std::isinf(excess(*parse_slo("p95_ms<2000"), tune::Run{}, Figures{})));
}

}  // namespace
}  // namespace sluice::tune
