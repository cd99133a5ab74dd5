// A plan as flat arrays: what the device reads in one step. Pure bookkeeping on the engine thread.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/live_request.h"
#include "engine/step.h"
#include "engine/step_runner.h"
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
  bool replay = false;    // pad what a recorded step can do (replay_buckets.h)
  SparseDecode sparse{};  // what attention leaves out, for the step's record
};

class BatchBuilder {
 public:
  BatchBuilder(const BatchLimits& limits, const KvLayout& layout, const ModelCost& cost);

  // Sizes a step's arrays for the largest batch; what the device touches is memory of the runner.
  void reserve(Step& step, StepRunner& runner) const;
  // Elements of staging that the largest batch needs, on the host and on the device.
  size_t staging_elements() const;
  size_t result_rows() const { return size_t(std::max(limits_.max_tokens, limits_.max_sequences)); }

  // Fills batch, rows and row_begin from step.plan, whose sequences are LiveRequests. Where every sequence has
  // one row whose logits are wanted, the batch is padded to a bucket with rows that belong to nobody: token 0
  // at position 0 of a sequence of their own, which has no cached tokens and no blocks, and wants nothing.
  //
  // Tables get the places that `blocks` has for a table's blocks once the plan's moves are made. A plan of
  // moves alone becomes a batch without tokens.
  //
  // Arrays lie at offsets that depend on step.replayable alone: recorded steps find them where they were.
  void build(Step& step, const BlockPool& blocks) const;
  // A step of padding alone, for warm-up.
  void build_padding(Step& step, int rows) const;

  // What steps are padded to, ascending; empty without replay.
  const std::vector<int>& buckets() const { return buckets_; }

 private:
  // Where a batch's arrays lie in staging.
  struct Arrays {
    int32_t *ids, *positions, *row_sequence, *logit_index, *row_starts, *kv_lengths;
    KvMove* moves;
    int32_t* tables[kMaxLayerGroups];
  };
  struct Shape {
    int max_tokens = 0, max_sequences = 0;
  };
  size_t flat_elements(const Shape& shape) const;
  size_t table_elements(const Shape& shape) const;
  size_t move_elements() const;
  Arrays lay_out(Step& step) const;
  int padded_rows(const StepPlan& plan) const;
  void add_moves(Step& step, KvMove* to) const;
  int prompt_blocks(const Step& step) const;
  void add_padding(Step& step, const Arrays& to, int from, int until, int stride) const;
  void finish(Step& step, const Arrays& arrays, int tokens, int sequences, int logit_rows, int stride) const;
  void add_tokens(Step& step, const PlanEntry& entry, int32_t row, int32_t* ids, int32_t* positions) const;
  void add_rows(Step& step, const PlanEntry& entry, int32_t first_row, int32_t* logit_index) const;
  void pool_rows(Step& step, const PlanEntry& entry, int32_t first_row, int32_t* logit_index) const;
  void count_sparse(Step& step) const;
  void count_work(Step& step, const BlockPool& blocks) const;

  const BatchLimits limits_;
  const KvLayout layout_;
  const ModelCost cost_;
  const std::vector<int> buckets_;
  const int most_moves_;  // of a plan, copies included; 0: without tiers, where copies have an op of their own
  const Shape eager_, replayed_;
};

}  // namespace sluice
