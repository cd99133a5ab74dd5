// The very Scheduler on a virtual clock: what a policy makes of a trace where steps take what a cost model
// says. The turn of the engine's loop (engine/step_loop.cc) is repeated event by event: take in arrivals, take
// back a finished step, plan the next while another runs, two in flight. Deterministic: the same setup and
// trace give the same result, bit for bit.
//
// Neither threads nor sockets are simulated: what they take is a constant (HostCost).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sched/scheduler.h"
#include "sched/simulator/step_cost.h"
#include "sched/simulator/trace.h"

namespace sluice {

// Times of the host. A step cannot start before it is planned, so these show where the device waits for it.
struct HostCost {
  TimeNs plan_ns = 15'000, plan_sequence_ns = 60;      // plan and arrays of a step
  TimeNs commit_ns = 5'000, commit_sequence_ns = 100;  // results taken back
  TimeNs launch_ns = 2'000;                            // a step begins so long after it may
  TimeNs notice_ns = 10'000;                           // from a step's end until the loop sees it
  TimeNs request_ns = 150'000;  // from the client's sending until the engine has the request
  TimeNs answer_ns = 100'000;   // from the end of the loop's turn until the client has the token
  // Each further client of the same turn has it so much later. Without that, a closed loop's clients whose
  // answers ended together would come back in the same instant and stay together for ever; in fact the first is
  // planned before the others are there.
  TimeNs answer_sequence_ns = 20'000;
};

// A reload: from `at` on another policy holds. What is fixed in a Policy is as it was.
struct PolicyChange {
  TimeNs at = 0;
  Policy policy;
};

struct SimulationSetup {
  Policy policy;
  std::vector<PolicyChange> changes;  // by `at`
  int max_requests = 0;               // running and waiting; one more is refused. At most policy.max_queue.
  KvLayout layout;
  int blocks = 0;
  StepCost cost;
  HostCost host;
  uint64_t seed = 1;  // of what a fitted cost leaves open
};

// Times as the client sees them; 0: never.
struct SimulatedRequest {
  TimeNs sent = 0, first_token = 0, ended = 0;
  TimeNs queue_ns = 0;  // from arrival at the engine to the first admission
  int tokens = 0;
  int preemptions = 0;
  int cached_tokens = 0;  // of the prompt
  FinishReason finish = FinishReason::none;
  bool refused = false;  // at the door, or since the queue was full
};

struct SimulationResult {
  std::vector<SimulatedRequest> requests;  // [trace.requests]
  std::vector<float> between_tokens_ms;    // all requests together
  std::vector<int64_t> steps_of;           // [max_running + 1] steps by their number of sequences
  std::vector<int64_t> batches_of;         // [max_running + 1] flushes by their size
  int64_t steps = 0, computed_tokens = 0, preemptions = 0, discarded = 0;
  TimeNs began = 0, ended = 0;  // first sending, last answer
  TimeNs device_ns = 0;         // steps ran
  int peak_blocks = 0, peak_waiting = 0;
};

// What a test looks at, or decides; each may be empty. Called with the state after it.
struct SimulationHooks {
  std::function<void(const Scheduler&, const StepPlan&, TimeNs)> planned;
  std::function<void(const Scheduler&, TimeNs)> turned;  // after every turn of the loop
  std::function<void(size_t request, TimeNs)> told;      // a client has a token, at this time
  std::function<bool(size_t request, TimeNs)> admits;    // at the door: false, it is refused
  std::function<void(size_t request)> left;              // one that was admitted has ended
  std::function<TimeNs(const StepPlan&)> takes;          // a step's time, instead of SimulationSetup::cost
};

// Every request of the trace must fit: input + output <= layout.max_length.
SimulationResult simulate(const SimulationSetup& setup, const Trace& trace, const SimulationHooks& hooks = {});

}  // namespace sluice
