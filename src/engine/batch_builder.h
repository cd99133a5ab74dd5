// A plan as flat arrays: what the device reads in one step. Pure bookkeeping on the engine thread.
#pragma once

#include "engine/live_request.h"
#include "engine/step.h"
#include "kv/block_table.h"

namespace sluice {

// Costs of a model in numbers, for the step's record.
struct ModelCost {
  size_t weight_bytes = 0;        // read once per step
  size_t kv_bytes_per_token = 0;  // of one layer group: keys and values of all its layers
  double flops_per_token = 0;     // of the layers' products
  double flops_per_logit_row = 0;
  double flops_per_attended = 0;  // of one layer group, per (row, cached token) pair
};

struct BatchLimits {
  int max_tokens = 0;     // T
  int max_sequences = 0;  // S
};

class BatchBuilder {
 public:
  BatchBuilder(const BatchLimits& limits, const KvLayout& layout, const ModelCost& cost);

  // Sizes a step's arrays for the largest batch.
  void reserve(Step& step) const;
  // Elements of staging that the largest batch needs.
  size_t staging_elements() const;
  // Fills batch, rows and row_begin from step.plan, whose sequences are LiveRequests.
  void build(Step& step) const;

 private:
  void add_tokens(Step& step, const PlanEntry& entry, int32_t row, int32_t* ids, int32_t* positions) const;
  void add_rows(Step& step, const PlanEntry& entry, int32_t first_row, int32_t* logit_index) const;
  void count_work(Step& step) const;

  const BatchLimits limits_;
  const KvLayout layout_;
  const ModelCost cost_;
};

}  // namespace sluice
