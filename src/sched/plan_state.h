// What the passes over one plan share: scheduler.cc and scheduler_room.cc alone.
#pragma once

#include "sched/scheduler.h"

namespace sluice {

struct Scheduler::PlanState {
  StepPlan& plan;
  TimeNs now;
  int tokens;              // left in the step
  double prompt_time = 0;  // ns left in the step for prompts

  // By lane, kept up to date through the plan.
  PerLane<int> running{}, held{};  // slots and blocks of those that go on
  PerLane<double> spent{};         // ns of the step
  PerLane<double> earned{};        // ns, of `credit_`, in this plan
  PerLane<bool> flying{};          // something of it is in a step in flight

  int coming_slots = 0, coming_blocks = 0;  // of sequences that leave, or have ended, once they land
  int reserved = 0;   // blocks that those who cannot be preempted again may come to need, all together
  int promised = -1;  // blocks that are free and spoken for; -1: to be counted
  uint64_t barrier = UINT64_MAX;  // who arrived later waits for one that is too large for its lane's share
  int prompts = 0;                // sequences that have got prompt tokens in this step
};

}  // namespace sluice
