// The gates' admission (server/traffic/admission.h) in front of a simulated server, on the simulation's clock.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "sched/simulator/simulator.h"
#include "server/traffic/admission.h"

namespace sluice::cli {

// Outlives the simulation that its hooks are given to, as the trace does.
class SimulatedAdmission {
 public:
  SimulatedAdmission(const TrafficSettings& settings, const Trace& trace)
      : trace_(trace),
        admission_(std::make_shared<Admission>(settings, keys_of(trace))),
        permits_(trace.requests.size()) {}
  SimulatedAdmission(const SimulatedAdmission&) = delete;

  SimulationHooks hooks() {
    SimulationHooks hooks;
    hooks.admits = [this](size_t request, TimeNs now) {
      const TracedRequest& r = trace_.requests[request];
      return !admission_->admit({r.tenant, r.lane, r.input, r.output}, kEpoch + now, permits_[request]);
    };
    hooks.told = [this](size_t request, TimeNs now) { permits_[request].first_token(kEpoch + now); };
    hooks.left = [this](size_t request) {
      permits_[request].generated(trace_.requests[request].output);
      permits_[request].end();
    };
    return hooks;
  }
  const Admission& admission() const { return *admission_; }

 private:
  // Where windows begin to count; their 0 means never.
  static constexpr TimeNs kEpoch = 1'000'000'000'000;

  static int keys_of(const Trace& trace) {
    uint32_t most = 0;
    for (const TracedRequest& r : trace.requests) most = std::max(most, r.tenant);
    return int(std::min<uint32_t>(most, 1 << 20));
  }

  const Trace& trace_;
  const std::shared_ptr<Admission> admission_;
  std::vector<Permit> permits_;  // [trace.requests]
};

}  // namespace sluice::cli
