// For tests: the simulator on a device whose steps take as long as a formula says, with hosts that take no
// time. Answers have the length that is asked for.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "sched/simulator/simulator.h"

namespace sluice {

// An H200 with the 8B shape as docs/performance.md measured it, or two cores with SmolLM2: ns.
struct DeviceTimes {
  double fixed, one_token, context, prompt_row, pair;
  int tile_rows = 1;  // attention computes a prompt's rows in tiles of so many

  double prompt(int first, int count) const {
    return count * prompt_row + (count + tile_rows - 1) / tile_rows * tile_rows * pair * (first + count / 2.0);
  }
};
inline constexpr DeviceTimes kH200 = {3.75e6, 0.0245e6, 8, 0.02e6, 0.95, 64};
inline constexpr DeviceTimes kTwoCores = {2.4e6, 1.0e6, 150, 0.6e6, 150};

// A step's time there.
inline TimeNs step_ns(const DeviceTimes& device, const StepPlan& plan) {
  double took = device.fixed;
  for (const PlanEntry& e : plan.entries)
    took += e.count == 1 ? device.one_token + device.context * e.first : device.prompt(e.first, e.count);
  return TimeNs(took);
}

class VirtualServer {
 public:
  VirtualServer(const DeviceTimes& device, const Policy& policy, int max_length, int blocks) : device_(device) {
    setup_.policy = policy;
    setup_.max_requests = policy.max_queue;
    setup_.layout = {.windows = {0}, .max_length = max_length, .max_step_tokens = policy.step_tokens};
    setup_.blocks = blocks;
    setup_.host = {0, 0, 0, 0, 0, 0, 0, 0, 0};
  }

  struct Wish {
    TimeNs at = 0;
    int prompt = 0, answer = 0;
    Lane lane = Lane::standard;
    uint32_t tenant = 0;
  };
  struct Outcome {
    Wish wish;
    TimeNs first = 0, end = 0;
    std::vector<TimeNs> gaps;  // between tokens
    int preemptions = 0;
    TimeNs latency() const { return end - wish.at; }
  };

  void submit(const Wish& wish) { wishes_.push_back(wish); }
  // A closed loop: the next of those submitted is sent when one of so many ends; `at` means nothing.
  void keep_in_flight(int requests) { trace_.concurrency = requests; }

  // In order of arrival.
  std::vector<Outcome> run() {
    std::stable_sort(wishes_.begin(), wishes_.end(), [](const Wish& a, const Wish& b) { return a.at < b.at; });
    for (const Wish& w : wishes_)
      trace_.requests.push_back(
          {.at = w.at, .input = w.prompt, .output = w.answer, .lane = w.lane, .tenant = w.tenant});
    std::vector<Outcome> outcomes(wishes_.size());
    std::vector<TimeNs> last(wishes_.size());
    SimulationHooks hooks;
    hooks.takes = [this](const StepPlan& plan) { return step_ns(device_, plan); };
    hooks.told = [&](size_t request, TimeNs now) {
      if (last[request]) outcomes[request].gaps.push_back(now - last[request]);
      last[request] = now;
    };
    const SimulationResult result = simulate(setup_, trace_, hooks);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const SimulatedRequest& r = result.requests[i];
      CHECK(r.finish == FinishReason::length, "nothing else ends here");
      outcomes[i].wish = wishes_[i], outcomes[i].preemptions = r.preemptions;
      outcomes[i].first = r.first_token, outcomes[i].end = r.ended;
    }
    return outcomes;
  }

 private:
  const DeviceTimes device_;
  SimulationSetup setup_;
  std::vector<Wish> wishes_;
  Trace trace_;
};

inline TimeNs percentile(std::vector<TimeNs> values, double share) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, size_t(share * double(values.size())))];
}

}  // namespace sluice
