#include "observe/vitals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace sluice {
namespace {

constexpr TimeNs kSecond = 1'000'000'000, kMs = 1'000'000;

StepRecord step(int sequences, int one_token, int tokens, TimeNs execute) {
  StepRecord r;
  r.sequences = sequences, r.one_token_sequences = one_token, r.tokens = tokens, r.execute_ns = execute;
  r.running = sequences;
  return r;
}

TEST(StepVitals, DecodesAndMixedStepsAreToldApart) {
  StepRecord decode = step(4, 4, 4, 10 * kMs), mixed = step(5, 4, 260, 50 * kMs),
             prompt = step(1, 0, 256, 40 * kMs);
  decode.graph = GraphUse::hit;
  const StepVitals v = step_vitals({decode, decode, mixed, prompt});
  EXPECT_EQ(v.pure_decodes, 2);
  EXPECT_EQ(v.mixed, 1);
  EXPECT_DOUBLE_EQ(v.decode_ms, 10);
  EXPECT_DOUBLE_EQ(v.mixed_ms, 50);
  EXPECT_DOUBLE_EQ(v.mixed_share, 50.0 / 70) << "prompts alone delay nobody";
  EXPECT_EQ(v.graph_hits, 2);
  EXPECT_EQ(v.graph_none, 0) << "only steps of one row each could be replayed";
  EXPECT_DOUBLE_EQ(v.alone_share, 0.25);
}

TEST(StepVitals, WhatStoppedAdmissionIsOfTheStepsWithAQueue) {
  StepRecord free = step(2, 2, 2, kMs), full = free;
  full.waiting = 3, full.stopped_by = AdmissionStop::slots;
  const StepVitals v = step_vitals({free, full, full, free});
  EXPECT_DOUBLE_EQ(v.waiting_share, 0.5);
  EXPECT_DOUBLE_EQ(v.stopped(AdmissionStop::slots), 1);
  EXPECT_DOUBLE_EQ(v.waiting, 1.5);
}

TEST(HostVitals, TheThreadThatWaitedLongestForACoreIsNamed) {
  HostState before, now;
  before.usable_cpus = now.usable_cpus = 2;
  before.threads = {{"sluice-engine", 1, 0.5, 100}, {"sluice-cpu-1", 1, 1, 100}, {"sluice-net", 1, 0, 10}};
  now.threads = {{"sluice-engine", 2, 0.6, 200}, {"sluice-cpu-1", 9, 3, 200}, {"sluice-net", 1, 9, 20}};
  before.cpu_s = 10, now.cpu_s = 20;
  const HostVitals v = host_vitals(before, now, 10);
  EXPECT_EQ(v.delayed_thread, "sluice-cpu-1") << "steps do not wait for network threads";
  EXPECT_DOUBLE_EQ(v.delay_share, 0.2);
  EXPECT_DOUBLE_EQ(v.delay_ms_turn, 20);
  EXPECT_DOUBLE_EQ(v.cpu_share, 0.5);
  EXPECT_EQ(v.compute_threads, 1);
}

TEST(HostState, TheKernelTellsOfThisProcess) {
  // A thread that has certainly run: it has seen its own clock move.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
    }
  });
  const HostState first = read_host_state();
  HostState later = first;
  while (later.cpu_s <= first.cpu_s) later = read_host_state();
  stop = true;
  busy.join();
  EXPECT_GE(first.usable_cpus, 0.01);
  EXPECT_GE(first.nodes, 1);
  EXPECT_GE(first.threads.size(), 2u);
}

// The meters that a window is made from, by hand.
struct Counted {
  Counter generated, preemptions;
  Gauge used, reserved;
  Histogram queue{std::array<double, 3>{0.01, 0.1, 1}};
  std::vector<Meter> all() {
    using K = Meter::Kind;
    return {{K::counter, "sluice_generated_tokens_total", "", "", &generated, nullptr, nullptr},
            {K::counter, "sluice_preemptions_total", "", "", &preemptions, nullptr, nullptr},
            {K::gauge, "sluice_kv_bytes", "", R"(state="used")", nullptr, &used, nullptr},
            {K::gauge, "sluice_kv_bytes", "", R"(state="reserved")", nullptr, &reserved, nullptr},
            {K::histogram, "sluice_request_queue_seconds", "", "", nullptr, nullptr, &queue}};
  }
};

TEST(VitalsHistory, AWindowIsTheDifferenceOfItsEnds) {
  Counted c;
  VitalsHistory history;
  EXPECT_FALSE(history.window(30, nullptr).complete);
  for (int second = 0; second <= 100; ++second) {
    c.generated.add(second < 50 ? 10 : 100);
    c.used.set(second < 95 ? 0 : 1000);
    if (second == 60) c.preemptions.add(7);
    if (second == 10) c.queue.observe(0.5);
    if (second == 99) c.queue.observe(0.05);
    history.note(c.all(), nullptr, {}, second * kSecond);
  }
  const Vitals last = history.window(10, nullptr);
  EXPECT_TRUE(last.complete);
  EXPECT_DOUBLE_EQ(last.window_s, 10);
  EXPECT_DOUBLE_EQ(last.generated_s, 100);
  EXPECT_EQ(last.kv.preemptions, 0);
  EXPECT_EQ(last.queued, 1) << "what happened before the window is not in it";
  EXPECT_LE(last.queue_p95_ms, 100);
  EXPECT_DOUBLE_EQ(last.kv.used, 1000 * 6 / 11.0) << "a gauge is told as the mean of its readings";
  EXPECT_EQ(history.window(60, nullptr).kv.preemptions, 7);
}

TEST(VitalsHistory, ReadingsOlderThanTheLongestWindowAreDropped) {
  Counted c;
  VitalsHistory history;
  for (int second = 0; second <= 1000; ++second) {
    c.generated.add(1);
    history.note(c.all(), nullptr, {}, second * kSecond);
  }
  const Vitals all = history.window(1e6, nullptr);
  EXPECT_DOUBLE_EQ(all.window_s, VitalsHistory::kLongestWindow_s);
  EXPECT_FALSE(all.complete);
}

}  // namespace
}  // namespace sluice
