// Each rule against a window in which its trouble was recorded (figures as servers on the CPU and on an H200
// gave them), and against the same server when it is well.
#include "observe/diagnosis.h"

#include <gmock/gmock.h>

namespace sluice {
namespace {

using testing::HasSubstr;

// A server on two cores that decodes for eight clients, and nothing is wrong.
Vitals healthy() {
  Vitals v;
  v.window_s = 30, v.seats = 16, v.peaks = {24e9, 1.2e12};
  v.generated_s = 180, v.finished_s = 3;
  StepVitals& s = v.steps;
  s.steps = 700, s.execute_s = 29, s.gap_s = 0.2, s.launch_s = 29;
  s.sequences = 8, s.tokens = 9, s.running = 8, s.waiting = 0;
  s.pure_decodes = 600, s.decode_ms = 35, s.mixed = 100, s.mixed_ms = 60, s.mixed_share = 0.22;
  s.weight_bytes = 0.5 * 24e9 * 29, s.kv_bytes = 0.05 * 24e9 * 29, s.flops = 0.5 * 1.2e12 * 29;
  v.kv.used = 60e6, v.kv.reserved = 4e6, v.kv.cached = 20e6, v.kv.free = 900e6;
  v.kv.computed_tokens = 9 * 700, v.kv.looked_up_tokens = 2000, v.kv.found_tokens = 100;
  v.host.usable_cpus = 2, v.host.compute_cores = 2, v.host.compute_threads = 2, v.host.cpu_share = 0.97,
  v.host.load = 2;
  v.queued = 90, v.queue_p50_ms = 2, v.queue_p95_ms = 20;
  v.attribution.all.requests = 90, v.attribution.all.total = TimeNs(90) * 2'600'000'000;
  v.attribution.all.spans[Span::decode] = v.attribution.all.total;
  return v;
}

// A card on which 128 clients keep 128 sequences running.
Vitals healthy_card() {
  Vitals v = healthy();
  v.card = true, v.seats = 256, v.peaks = {4.4e12, 7.6e14};
  StepVitals& s = v.steps;
  s.steps = 1000, s.sequences = 128, s.execute_s = 8, s.gap_s = 0.1, s.launch_s = 0.3;
  s.pure_decodes = 900, s.decode_ms = 8, s.mixed_ms = 12, s.graph_hits = 900;
  s.weight_bytes = 0.7 * 4.4e12 * 8, s.kv_bytes = 0.1 * 4.4e12 * 8, s.flops = 0.2 * 7.6e14 * 8;
  v.cards = {{"NVIDIA H200", 1935, 1980, 560, 700, 51, "", 0.98, 0.7, 1e9, 55e9}};
  return v;
}

struct Trouble {
  const char* cause;
  const char* setting;  // what it must be about
  Vitals vitals;
};

template <typename Change>
Vitals changed(Vitals v, const Change& change) {
  change(v);
  return v;
}

std::vector<Trouble> troubles() {
  return {
      {"batch-policy-mismatch", "scheduler.policy",
       changed(healthy(),
               [](Vitals& v) {  // scheduler.policy=serial, concurrency 12
                 v.steps.sequences = 1, v.steps.tokens = 1.4, v.steps.alone_share = 1;
                 v.steps.running = 1, v.steps.waiting = 11;
                 v.steps.waiting_share = 1, v.steps.alone_waiting_share = 1;
                 v.steps.stopped_share[size_t(AdmissionStop::serial)] = 1;
                 v.queue_p95_ms = 4000, v.queue_p50_ms = 2500;
               })},
      {"queue-saturation", "engine.max_sequences",
       changed(healthy(),
               [](Vitals& v) {
                 v.steps.sequences = v.steps.running = 4, v.seats = 4;
                 v.steps.waiting = 28, v.steps.waiting_share = 1;
                 v.steps.stopped_share[size_t(AdmissionStop::slots)] = 1;
                 v.queue_p95_ms = 3000, v.queue_p50_ms = 1700;
               })},
      {"queue-saturation", "engine.step_tokens",
       changed(healthy(),
               [](Vitals& v) {
                 v.steps.waiting = 5, v.steps.waiting_share = 0.8;
                 v.steps.stopped_share[size_t(AdmissionStop::budget)] = 0.9;
                 v.queue_p95_ms = 300, v.queue_p50_ms = 120;
               })},
      {"kv-preallocation-waste", "kv.allocation",
       changed(healthy(),
               [](Vitals& v) {
                 v.kv.used = 30e6, v.kv.reserved = 900e6, v.kv.free = 20e6;
                 v.steps.sequences = v.steps.running = 4, v.steps.waiting = 12;
                 v.steps.waiting_share = 1;
                 v.steps.stopped_share[size_t(AdmissionStop::blocks)] = 1;
               })},
      {"kv-fragmentation", "kv.precision",
       changed(healthy(),
               [](Vitals& v) {
                 v.kv.used = 500e6, v.kv.wasted = 200e6, v.kv.free = 100e6;
                 v.steps.waiting = 3, v.steps.waiting_share = 0.6;
                 v.steps.stopped_share[size_t(AdmissionStop::blocks)] = 1;
               })},
      {"kv-pool-too-small", "kv.precision",
       changed(healthy(),
               [](Vitals& v) {
                 v.kv.used = 960e6, v.kv.reserved = 20e6, v.kv.free = 5e6;
                 v.steps.waiting = 8, v.steps.waiting_share = 0.9;
                 v.steps.stopped_share[size_t(AdmissionStop::blocks)] = 1;
               })},
      {"prefix-thrash", "kv_bytes",
       changed(healthy(),
               [](Vitals& v) {
                 v.kv.looked_up_tokens = 40'000, v.kv.found_tokens = 2'000;
                 v.kv.evicted_blocks = 2300, v.kv.missed_evicted_tokens = 33'000;
                 v.kv.computed_tokens = 44'000;
               })},
      {"preemption-thrash", "engine.max_sequences",
       changed(healthy(),
               [](Vitals& v) {
                 v.kv.preemptions = 40, v.kv.recomputed_tokens = 3000;
                 v.kv.computed_tokens = 9000;
               })},
      {"long-prompt-interference", "mixed_prompt_tokens",
       changed(healthy(),
               [](Vitals& v) {
                 v.steps.mixed_ms = 900, v.steps.mixed_share = 0.75;
                 v.steps.mixed = 25;
               })},
      {"memory-bandwidth-bound", "quantize",
       changed(healthy(),
               [](Vitals& v) { v.steps.weight_bytes = 0.93 * 24e9 * 29, v.steps.flops = 0.1 * 1.2e12 * 29; })},
      {"memory-bandwidth-bound", "kv.precision",
       changed(healthy_card(),
               [](Vitals& v) {
                 v.steps.weight_bytes = 0.2 * 4.4e12 * 8;
                 v.steps.kv_bytes = 0.73 * 4.4e12 * 8;
               })},
      {"compute-bound", "kv.prefix_cache",
       changed(healthy(), [](Vitals& v) { v.steps.flops = 0.91 * 1.2e12 * 29; })},
      {"host-bound", "engine.graphs", changed(healthy_card(), [](Vitals& v) { v.steps.gap_s = 4; })},
      {"host-bound", "machine.engine_cpu", changed(healthy(), [](Vitals& v) { v.steps.gap_s = 12; })},
      {"graph-misses", "engine.graphs",
       changed(healthy_card(),
               [](Vitals& v) { v.steps.graph_hits = 0, v.steps.graph_none = 900, v.steps.launch_s = 5; })},
      {"clock-throttle", "clocks",
       changed(healthy_card(),
               [](Vitals& v) {
                 v.cards[0].clock_mhz = 1200, v.cards[0].throttled_by = "power cap";
                 v.steps.flops = 0.45 * 7.6e14 * 8;
               })},
      {"pcie-bound", "kv.host_bytes",
       changed(healthy_card(),
               [](Vitals& v) { v.cards[0].pcie_bytes_s = 49e9, v.kv.restored_bytes = 1.4e12; })},
      {"gpu-imbalance", "spread",
       changed(healthy_card(),
               [](Vitals& v) {
                 v.cards.push_back(v.cards[0]);
                 v.cards[1].utilisation = 0.2;
               })},
      {"cpu-scheduling-delay", "cores",
       changed(healthy(),
               [](Vitals& v) {
                 v.host.delayed_thread = "sluice-executor", v.host.delay_share = 0.31;
                 v.host.delay_ms_turn = 4, v.host.load = 6;
               })},
      {"oversubscribed-cores", "cpu.threads",
       changed(healthy(), [](Vitals& v) { v.host.compute_threads = 8; })},
      {"oversubscribed-cores", "cpu.threads",
       changed(healthy(), [](Vitals& v) { v.host.throttled_share = 0.4; })},
      {"numa-remote", "machine.numa",
       changed(healthy(), [](Vitals& v) { v.host.nodes = 2, v.host.remote_share = 0.5; })},
      {"door-bound", "server.text_threads",
       changed(healthy(),
               [](Vitals& v) {
                 Attribution& all = v.attribution.all;
                 all.spans[Span::tokenize] = all.total / 2;
                 all.spans[Span::decode] -= all.total / 2;
               })},
      {"slow-readers", "server.write_timeout_ms", changed(healthy(), [](Vitals& v) { v.paused_share = 0.4; })},
      {"broken-tokens", "weights",
       changed(healthy(),
               [](Vitals& v) {
                 v.anomalies = {{AnomalyKind::nan_logits, AnomalyCause::broken_op, 12},
                                {AnomalyKind::repetition, AnomalyCause::sampler_setting, 40}};
               })},
      {"slow-tokens", "device",
       changed(healthy(),
               [](Vitals& v) {
                 v.anomalies = {{AnomalyKind::slow_token, AnomalyCause::slow_step, 40, 24},
                                {AnomalyKind::slow_token, AnomalyCause::engine_stall, 4, 1}};
               })},
  };
}

TEST(Diagnosis, ServersThatAreWellHaveNoFindings) {
  for (const Vitals& v : {healthy(), healthy_card()})
    for (const Finding& f : diagnose(v)) ADD_FAILURE() << f.cause << ": " << f.text;
  EXPECT_TRUE(diagnose(Vitals{}).empty()) << "of a server that has just started nothing is known";
}

// Precision and recall are both one over these: the trouble is found, is the first, and nothing else is.
TEST(Diagnosis, EachTroubleIsNamedAlone) {
  for (const Trouble& t : troubles()) {
    const std::vector<Finding> findings = diagnose(t.vitals);
    ASSERT_EQ(findings.size(), 1u) << t.cause << (findings.size() > 1 ? ", but also " : "")
                                   << (findings.size() > 1 ? findings[1].cause : "");
    const Finding& f = findings[0];
    EXPECT_EQ(f.cause, t.cause);
    EXPECT_THAT(f.setting, HasSubstr(t.setting));
    EXPECT_GT(f.lost, 0);
    EXPECT_LT(f.lost, 1);
    EXPECT_GE(f.evidence.size(), 2u) << f.cause;
    EXPECT_FALSE(f.text.empty());
  }
}

TEST(Diagnosis, WhatIsAnActualLossRanksOverWhatBindsTheSteps) {
  Vitals v = healthy();
  v.steps.weight_bytes = 0.95 * 24e9 * 29, v.steps.flops = 0.02 * 1.2e12 * 29;
  v.steps.sequences = v.steps.running = 1, v.steps.alone_share = 1, v.steps.waiting = 11,
  v.steps.waiting_share = 1;
  v.steps.stopped_share[size_t(AdmissionStop::serial)] = 1;
  const auto findings = diagnose(v);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].cause, "batch-policy-mismatch");
  EXPECT_EQ(findings[1].cause, "memory-bandwidth-bound");
  EXPECT_NEAR(findings[0].gain(), 9, 1)
      << "twelve sequences for the bytes of one, less what computing for them takes";
}

// As an H200 gave it, computing prompts of 2,040 tokens for 96 clients.
TEST(Diagnosis, ACardUnderItsPowerCapIsComputeBoundByTheClockThatItHas) {
  Vitals v = healthy_card();
  v.steps.flops = 0.80 * 7.6e14 * 8, v.steps.weight_bytes = 0.07 * 4.4e12 * 8;
  v.cards[0].clock_mhz = 1515, v.cards[0].power_w = 691, v.cards[0].throttled_by = "power cap";
  const auto findings = diagnose(v);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].cause, "clock-throttle") << "what can be helped comes first";
  EXPECT_EQ(findings[1].cause, "compute-bound");
}

// The same load on another day: the clock was read at a moment when it was up.
TEST(Diagnosis, ACardThatComputesPromptsAloneIsComputeBoundAtItsFullClockToo) {
  Vitals v = healthy_card();
  v.steps.flops = 0.79 * 7.6e14 * 8, v.steps.weight_bytes = 0.07 * 4.4e12 * 8;
  const auto findings = diagnose(v);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].cause, "compute-bound");
}

TEST(Diagnosis, WhatClientsAskForIsNoTroubleOfTheServer) {
  Vitals v = healthy();
  v.anomalies = {{AnomalyKind::repetition, AnomalyCause::sampler_setting, 40},
                 {AnomalyKind::slow_token, AnomalyCause::long_prompt, 40, 100}};
  EXPECT_TRUE(diagnose(v).empty());
}

// The gain is throughput without the trouble, against now.
TEST(Diagnosis, AGainIsWhatTheLossLeaves) {
  EXPECT_DOUBLE_EQ((Finding{"x", 0.5, "", {}, ""}).gain(), 1);
  EXPECT_DOUBLE_EQ((Finding{"x", 0.2, "", {}, ""}).gain(), 0.25);
}

}  // namespace
}  // namespace sluice
