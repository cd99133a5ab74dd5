// One step on its way: planned and built by the engine thread, run by the executor, then the engine thread's
// again. There are two of them, allocated at start.
#pragma once

#include <span>
#include <vector>

#include "engine/step_record.h"
#include "sched/step_plan.h"
#include "tensor/backend.h"

namespace sluice {

inline constexpr int kStepsInFlight = 2;

struct Step {
  StepPlan plan;

  // Built: flat arrays in `staging` (host memory), which `batch` points into.
  BatchInput batch;
  std::vector<int32_t> staging;    // sized for the largest step
  size_t staging_used = 0;         // elements
  std::vector<SampleRow> rows;     // [logit_rows]
  std::vector<int32_t> row_begin;  // [sequences + 1] first row of each plan entry

  // Run.
  std::vector<SampleResult> results;  // [logit_rows]

  StepRecord record;

  std::span<const SampleResult> results_of(size_t entry) const {
    return {results.data() + row_begin[entry], size_t(row_begin[entry + 1] - row_begin[entry])};
  }
};

}  // namespace sluice
