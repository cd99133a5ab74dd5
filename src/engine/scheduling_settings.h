// Scheduling as it is set in sluice.yaml, and the policy that comes of it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/batching_settings.h"
#include "sched/scheduler.h"

namespace sluice {

struct SchedulingSettings {
  int target_itl_ms = 0;  // scheduler.target_itl_ms; 0: automatic
  // scheduler.lanes.NAME.weight
  int interactive_weight = kDefaultLaneWeights[0];
  int standard_weight = kDefaultLaneWeights[1];
  int batch_weight = kDefaultLaneWeights[2];
};

// `sizes` with all that may change while running as it is set; its max_running bounds batches, 0: nothing does.
// Errors (kInvalidArgument, field set): as batching_of, and numbers out of range.
Result<Policy> policy_with(Policy sizes, const BatchingSettings& batching, const SchedulingSettings& scheduling,
                           int mixed_prompt_tokens);

// Keys that are set (to something else than their default) and mean nothing under this policy; empty: none.
std::vector<std::string> without_effect(const Batching& batching, const BatchingSettings& settings,
                                        const SchedulingSettings& scheduling, int mixed_prompt_tokens);

// What differs, as lines for the log: "lanes: 16/4/1 -> 8/4/1".
std::string describe_change(const Policy& from, const Policy& to);

}  // namespace sluice
