// Three times of what a server can do, on a virtual clock: who is refused, what the others wait, what is still
// delivered. bench/overload.py measures the same on a server that is there.
#include <gtest/gtest.h>

#include "cli/simulated_admission.h"
#include "sched/virtual_server.h"

namespace sluice::cli {
namespace {

constexpr TimeNs kMs = 1'000'000, kSecond = 1000 * kMs;

// A server, what each request asks it for, and what its interactive clients are promised.
struct Machine {
  DeviceTimes device;
  int seats, step_tokens;
  int prompt, answer;  // tokens
  int clients;         // that keep it full
  TimeNs first_token;  // p99 of its interactive requests, at most
  TimeNs target_itl;   // scheduler.target_itl_ms
};
const Machine kCores = {kTwoCores, 64, 512, 64, 32, 16, 1000 * kMs, 50 * kMs};
const Machine kCard = {kH200, 256, 2048, 512, 128, 128, 200 * kMs, 36 * kMs};

SimulationSetup setup_of(const Machine& machine) {
  SimulationSetup setup;
  setup.policy = {.max_running = machine.seats, .step_tokens = machine.step_tokens, .max_queue = 1024};
  setup.policy.target_itl_ns = machine.target_itl;
  setup.max_requests = setup.policy.max_queue;
  setup.layout = {.windows = {0}, .max_length = 2048, .max_step_tokens = machine.step_tokens};
  setup.blocks = 60000;
  return setup;
}

TraceWish wish_of(const Machine& machine) {
  TraceWish wish;
  wish.input = {.low = machine.prompt, .high = machine.prompt};
  wish.output = {.low = machine.answer, .high = machine.answer};
  return wish;
}

constexpr TimeNs kWarm = 10 * kSecond, kEnd = 60 * kSecond;

// What its clients get from kWarm to kEnd: the start, and a queue that empties afterwards, say nothing.
double tokens_per_second(const Machine& machine, const Trace& trace, SimulationHooks hooks,
                         SimulationResult& result) {
  int64_t tokens = 0;
  hooks.takes = [&](const StepPlan& plan) { return step_ns(machine.device, plan); };
  hooks.told = [&, told = std::move(hooks.told)](size_t request, TimeNs now) {
    if (told) told(request, now);
    tokens += now >= kWarm && now < kEnd;
  };
  result = simulate(setup_of(machine), trace, hooks);
  EXPECT_GE(result.ended, kEnd) << "there is work all the time";
  return double(tokens) / seconds(kEnd - kWarm);
}

double capacity_of(const Machine& machine) {
  TraceWish wish = wish_of(machine);
  wish.arrivals = {.kind = Arrivals::Kind::closed, .concurrency = machine.clients};
  wish.requests = 5000;
  SimulationResult result;
  return tokens_per_second(machine, make_trace(wish), {}, result);
}

struct Overload {
  double goodput = 0;         // of capacity
  PerLane<double> refused{};  // share of the lane's requests
  PerLane<TimeNs> p99{};      // of the time to the first token
};

// A quarter of capacity in interactive, three quarters in standard, two capacities in batch.
Overload three_times(const Machine& machine, const TrafficSettings& traffic) {
  const double capacity = capacity_of(machine);
  TraceWish wish = wish_of(machine);
  wish.arrivals = {.kind = Arrivals::Kind::poisson, .rate = 3 * capacity / machine.answer};
  wish.lanes = {0.25, 0.75, 2};
  wish.duration_ns = kEnd;
  const Trace trace = make_trace(wish);
  SimulatedAdmission admission(traffic, trace);
  SimulationResult result;
  Overload seen;
  seen.goodput = tokens_per_second(machine, trace, admission.hooks(), result) / capacity;
  PerLane<std::vector<TimeNs>> first;
  PerLane<int> came{}, refused{};
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const auto lane = size_t(trace.requests[i].lane);
    const SimulatedRequest& r = result.requests[i];
    if (r.sent < kWarm) continue;
    ++came[lane], refused[lane] += r.refused;
    if (!r.refused) first[lane].push_back(r.first_token - r.sent);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    seen.refused[lane] = double(refused[lane]) / came[lane];
    seen.p99[lane] = percentile(first[lane], 0.99);
  }
  return seen;
}

class OverloadTest : public testing::TestWithParam<std::tuple<Machine, std::string>> {};

TEST_P(OverloadTest, InteractiveIsAsPromisedAndLittleCapacityIsLost) {
  const auto& [machine, mode] = GetParam();
  TrafficSettings traffic;
  traffic.limit.mode = mode;
  const Overload seen = three_times(machine, traffic);
  EXPECT_GE(seen.goodput, 0.9);
  EXPECT_LE(seen.p99[0], machine.first_token);
  EXPECT_LE(seen.refused[0], 0.02);
  EXPECT_LT(seen.refused[0], seen.refused[1] + 0.01);
  EXPECT_LT(seen.refused[1], seen.refused[2]);
  EXPECT_GT(seen.refused[2], 0.5);
}

INSTANTIATE_TEST_SUITE_P(Machines, OverloadTest,
                         testing::Combine(testing::Values(kCores, kCard), testing::Values("rule", "gradient")));

}  // namespace
}  // namespace sluice::cli
