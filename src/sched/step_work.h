// The work of a step, counted from its plan and not measured: what a record says of it and what a cost model
// is a function of.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/block_table.h"
#include "sched/step_plan.h"

namespace sluice {

struct StepWork {
  int rows = 0;  // tokens
  int sequences = 0;
  int one_token_sequences = 0;
  int samples = 0;             // sequences of which a token is sampled
  int longest_context = 0;     // tokens
  int64_t context_tokens = 0;  // at the end of the step, summed over sequences
  // Summed over layer groups:
  int64_t kv_read_tokens = 0;         // cached tokens that are read once for each sequence
  double pairs = 0;                   // (row, cached token) that attention multiplies
  double prompt_pairs = 0;            // of those, in sequences with more than one token
  int64_t prompt_context_tokens = 0;  // cached tokens that such sequences see in front of their own

  int prompt_rows() const { return rows - one_token_sequences; }
};

inline StepWork work_of(const StepPlan& plan, const KvLayout& layout) {
  StepWork work;
  work.rows = plan.tokens;
  work.sequences = int(plan.entries.size());
  for (const PlanEntry& e : plan.entries) {
    const int length = e.first + e.count;
    work.one_token_sequences += e.count == 1;
    work.samples += e.samples;
    work.longest_context = std::max(work.longest_context, length);
    work.context_tokens += length;
    for (const int window : layout.windows) {
      work.kv_read_tokens += window ? std::min(length, window + e.count - 1) : length;
      const double pairs = double(e.count) * (window ? std::min(window, length) : length - (e.count - 1) / 2.0);
      work.pairs += pairs;
      if (e.count == 1) continue;
      work.prompt_pairs += pairs;
      work.prompt_context_tokens += window ? std::min(e.first, window - 1) : e.first;
    }
  }
  return work;
}

}  // namespace sluice
