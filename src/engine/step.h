// One step on its way: planned and built by the engine thread, run by the executor, then the engine thread's
// again. There are two of them, allocated at start; each keeps its slot, and so its memory on host and device.
#pragma once

#include <span>
#include <vector>

#include "engine/answer_mask.h"
#include "engine/logits_state.h"
#include "engine/step_record.h"
#include "sched/step_plan.h"
#include "tensor/backend.h"

namespace sluice {

// Logit rows of a step whose hidden states belong to a request that asked for them pooled.
struct PoolRows {
  int first = 0, count = 0;
  float scale = 1;       // of each row
  float* sum = nullptr;  // [C] the request's, which the step's end makes readable
};

struct Step {
  int slot = 0;  // 0 .. kStepsInFlight - 1, never changes
  StepPlan plan;

  // Built: flat arrays in `staging` (host memory of the runner), which `batch` points into. The device has them
  // at the same offsets; there the rows of a table are `table_pitch` apart, here batch.table_stride.
  BatchInput batch;
  std::span<int32_t> staging;      // sized for the largest step
  size_t flat_elements = 0;        // of staging: all that comes before the tables
  int table_pitch = 0;             // elements
  std::vector<SampleRow> rows;     // of plan's entries; padding of the batch has none
  std::vector<int32_t> row_begin;  // [sequences + 1] first row of each plan entry
  std::vector<MaskWait> masks;     // that must be made before the step samples
  std::vector<PoolRows> pools;     // ascending; seldom any
  bool replayable = false;         // padded to a bucket, so that a recorded step does for it

  // Run.
  std::span<SampleResult> results;  // [logit_rows], in memory of the runner
  std::vector<LogitsState> states;  // [logit_rows], where the runner looks at logits; else all `fine`

  StepRecord record;
  bool failed = false;  // its results are no good: its requests end as failed

  std::span<const SampleResult> results_of(size_t entry) const {
    return {results.data() + row_begin[entry], size_t(row_begin[entry + 1] - row_begin[entry])};
  }
};

}  // namespace sluice
