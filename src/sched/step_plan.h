// What one step computes: tokens of sequences. Whether they are a prompt, a chunk of one, or the token sampled
// last is all the same here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/sequence.h"

namespace sluice {

struct PlanEntry {
  Sequence* sequence = nullptr;
  int first = 0;         // position of its first token in this step
  int count = 0;         // tokens
  bool samples = false;  // the last of them is the last that is known: the next is sampled from it
};

// What kept the first waiting sequence out of this step.
enum class AdmissionStop : uint8_t { none, slots, blocks, budget, slow_client };

constexpr const char* admission_stop_name(AdmissionStop stop) {
  switch (stop) {
    case AdmissionStop::none:
      return "none";
    case AdmissionStop::slots:
      return "slots";
    case AdmissionStop::blocks:
      return "blocks";
    case AdmissionStop::budget:
      return "budget";
    case AdmissionStop::slow_client:
      return "slow_client";
  }
  return "?";
}

struct StepPlan {
  std::vector<PlanEntry> entries;  // one per sequence; capacity for all that may run
  std::vector<Sequence*> expired;  // ended by their deadline while planning; the caller tells their clients
  int tokens = 0;
  int admitted = 0;
  int preempted = 0;  // gave up their blocks, or will when they land
  int held_back = 0;  // wanted tokens but got no block in this step
  AdmissionStop stopped_by = AdmissionStop::none;

  // Room for all that may ever be in it.
  void reserve(int max_running, int max_queue) {
    entries.reserve(size_t(max_running));
    expired.reserve(size_t(max_running) * 2 + size_t(max_queue));
  }
  bool empty() const { return entries.empty(); }
  void reset() {
    entries.clear();
    expired.clear();
    tokens = admitted = preempted = held_back = 0;
    stopped_by = AdmissionStop::none;
  }
};

}  // namespace sluice
