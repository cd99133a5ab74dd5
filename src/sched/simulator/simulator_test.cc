// The simulator's own behaviour; then the scheduler's invariants under traffic that only it can make.
#include "sched/simulator/simulator.h"

#include <gtest/gtest.h>

#include <set>

#include "sched/simulator/random.h"

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;

// Every step takes as long, however much it computes.
StepCost constant_cost(double seconds) {
  FittedCost cost;
  cost.coefficient[0] = seconds;
  return cost;
}

SimulationSetup quiet_setup() {
  SimulationSetup setup;
  setup.policy = {.max_running = 16, .step_tokens = 256, .max_queue = 4096};
  setup.max_requests = 4096;
  setup.layout = {.block_tokens = 16, .windows = {0}, .max_length = 1024, .max_step_tokens = 256};
  setup.blocks = 4096;
  setup.cost = constant_cost(0.010);
  setup.host = {.plan_ns = 0,
                .plan_sequence_ns = 0,
                .commit_ns = 0,
                .commit_sequence_ns = 0,
                .launch_ns = 0,
                .notice_ns = 0,
                .request_ns = 0,
                .answer_ns = 0,
                .answer_sequence_ns = 0};
  return setup;
}

TEST(Simulator, OneRequestTakesItsSteps) {
  Trace trace;
  trace.requests = {{.at = 5 * kMs, .input = 100, .output = 8}};
  const SimulationResult result = simulate(quiet_setup(), trace);
  const SimulatedRequest& r = result.requests[0];
  EXPECT_EQ(r.first_token - r.sent, 10 * kMs);
  EXPECT_EQ(r.ended - r.sent, 80 * kMs);
  EXPECT_EQ(r.tokens, 8);
  EXPECT_EQ(r.finish, FinishReason::length);
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.steps_of[1], 8);
}

// The engine plans step n+1 while n runs: who arrives during n waits for what is planned already.
TEST(Simulator, TwoStepsAreInFlight) {
  Trace trace;
  trace.requests = {{.at = 0, .input = 10, .output = 10}, {.at = 1 * kMs, .input = 10, .output = 1}};
  const SimulatedRequest late = simulate(quiet_setup(), trace).requests[1];
  // Steps 1 and 2 are planned at 0; step 3, which it joins, at 10 ms, and ends at 30.
  EXPECT_EQ(late.first_token, 30 * kMs);
}

TEST(Simulator, TheDeviceWaitsForAPlanThatIsSlow) {
  SimulationSetup setup = quiet_setup();
  setup.host.plan_ns = 15 * kMs;
  Trace trace;
  trace.requests = {{.input = 10, .output = 5}};
  const SimulationResult result = simulate(setup, trace);
  EXPECT_GE(result.ended, 5 * 15 * kMs);
  EXPECT_EQ(result.device_ns, 50 * kMs);
}

TEST(Simulator, AClosedLoopKeepsItsConcurrency) {
  Trace trace;
  trace.concurrency = 4;
  trace.requests.assign(40, {.input = 10, .output = 10});
  int most = 0;
  SimulationHooks hooks;
  hooks.planned = [&](const Scheduler& s, const StepPlan& plan, TimeNs) {
    most = std::max(most, int(plan.entries.size()));
    EXPECT_LE(s.running().size() + s.waiting().size(), 8u) << "four and the four that just ended";
  };
  const SimulationResult result = simulate(quiet_setup(), trace, hooks);
  EXPECT_EQ(most, 4);
  for (const SimulatedRequest& r : result.requests) EXPECT_EQ(r.tokens, 10);
}

// Measured on two cores: eight equal clients do not compute in step with each other, since the first whose
// answer is written comes back before the others have theirs, and is planned alone.
TEST(Simulator, ClientsOfAClosedLoopDoNotStayTogether) {
  SimulationSetup setup = quiet_setup();
  setup.host.answer_sequence_ns = 20'000;
  std::get<FittedCost>(setup.cost).coefficient[1] = 0.0015;  // a row: so prompts are rationed beside the others
  Trace trace;
  trace.concurrency = 8;
  trace.requests.assign(200, {.input = 64, .output = 32});
  const SimulationResult result = simulate(setup, trace);
  EXPECT_LT(result.steps_of[8], result.steps / 2);
}

TEST(Simulator, AFullQueueRefuses) {
  SimulationSetup setup = quiet_setup();
  setup.max_requests = 4;
  Trace trace;
  trace.requests.assign(10, {.input = 10, .output = 10});
  const SimulationResult result = simulate(setup, trace);
  int refused = 0;
  for (const SimulatedRequest& r : result.requests) refused += r.refused;
  EXPECT_EQ(refused, 6);
}

TEST(Simulator, DeadlinesAndCancelsEndRequests) {
  Trace trace;
  trace.requests = {{.input = 10, .output = 500, .timeout_ns = 100 * kMs},
                    {.input = 10, .output = 500, .cancel_ns = 55 * kMs}};
  const SimulationResult result = simulate(quiet_setup(), trace);
  EXPECT_EQ(result.requests[0].finish, FinishReason::deadline);
  EXPECT_EQ(result.requests[1].finish, FinishReason::cancelled);
  EXPECT_NEAR(ms(result.requests[0].ended), 100, 10);
  EXPECT_NEAR(ms(result.requests[1].ended), 55, 10);
}

TEST(Simulator, ASlowClientHoldsItselfUpAndNobodyElse) {
  Trace trace;
  trace.requests = {{.input = 10, .output = 300, .reads_per_s = 20}, {.input = 10, .output = 300}};
  const SimulationResult result = simulate(quiet_setup(), trace);
  EXPECT_EQ(result.requests[0].tokens, 300);
  EXPECT_GT(seconds(result.requests[0].ended), 8);
  EXPECT_LT(seconds(result.requests[1].ended), 3.1);
}

TEST(Simulator, WindowedWaitsForItsTriggers) {
  SimulationSetup setup = quiet_setup();
  setup.policy.batching = {
      BatchingKind::windowed,
      {.max_batch = 16, .max_wait_ns = 100 * kMs, .idle_ns = 50 * kMs, .span_ns = 200 * kMs}};
  Trace trace;
  trace.requests = {{.at = 0, .input = 10, .output = 1}, {.at = 20 * kMs, .input = 10, .output = 1}};
  const SimulationResult result = simulate(setup, trace);
  EXPECT_EQ(result.batches_of[2], 1);
  EXPECT_NEAR(ms(result.requests[0].first_token), 70 + 10, 0.1) << "50 ms after the last arrival, and a step";
}

// Prompts are rationed beside streams that go on, not beside requests whose last token is in flight already: a
// burst of one-token answers takes as many full steps as its prompts need. (Counting those as streams once cost
// a third of the throughput at 5,000 such requests a second, and twice the latency.)
TEST(Simulator, RequestsThatAreAboutToEndDoNotRationPrompts) {
  SimulationSetup setup = quiet_setup();
  setup.policy.mixed_prompt_tokens = 40;
  setup.policy.max_running = 64;
  Trace trace;
  trace.requests.assign(24, {.input = 32, .output = 1});  // 768 tokens, in steps of 256
  EXPECT_EQ(simulate(setup, trace).steps, 3);
}

TEST(Simulator, TheSameTraceGivesTheSameResult) {
  TraceWish wish;
  wish.arrivals.rate = 200;
  wish.input = {LengthLaw::Kind::lognormal, 1, 500, 50, 1};
  wish.output = {LengthLaw::Kind::uniform, 1, 40};
  wish.requests = 500;
  SimulationSetup setup = quiet_setup();
  std::get<FittedCost>(setup.cost).spread = {0.5f, 1.f, 3.f};
  const SimulationResult a = simulate(setup, make_trace(wish)), b = simulate(setup, make_trace(wish));
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.between_tokens_ms, b.between_tokens_ms);
  for (size_t i = 0; i < a.requests.size(); ++i) EXPECT_EQ(a.requests[i].ended, b.requests[i].ended);
}

}  // namespace
}  // namespace sluice
