#include "engine/batch_builder.h"

#include <algorithm>
#include <cstring>

#include "engine/replay_buckets.h"
#include "sched/step_work.h"

namespace sluice {
namespace {

constexpr size_t kAlign = 16;  // elements: arrays begin at cache lines
size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

SampleRow sampling_row(const LiveRequest& r, const PlanEntry& entry) {
  const SamplingParams& p = r.request.sampling;
  const int position = entry.first + entry.count;  // of the token to be sampled
  SampleRow row;
  row.slot = r.slot;
  row.temperature = p.temperature;
  row.top_k = p.top_k;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.seed = p.seed;
  row.counter = uint64_t(position);
  row.top_logprobs = p.top_logprobs;
  row.bias_ids = r.bias_ids.data();
  row.bias_values = r.bias_values.data();
  row.bias_count = int(r.bias_ids.size());
  if (r.answer) {
    row.mask = r.answer->words.data();  // with regard to min_tokens
  } else if (position - r.prompt_tokens < r.request.min_tokens) {
    row.banned_ids = r.end_ids.data();
    row.banned_count = int(r.end_ids.size());
  }
  if (r.has_penalties) {
    row.presence_penalty = p.presence_penalty;
    row.frequency_penalty = p.frequency_penalty;
    row.repetition_penalty = p.repetition_penalty;
    row.history = r.ids.data();  // reserved for all tokens to come, so it stays where it is
    row.history_prompt = r.prompt_tokens;
    row.history_total = int(r.ids.size());
  }
  return row;
}

}  // namespace

BatchBuilder::BatchBuilder(const BatchLimits& limits, const KvLayout& layout, const ModelCost& cost)
    : limits_(limits),
      layout_(layout),
      cost_(cost),
      buckets_(limits.replay ? replay_buckets(limits.max_sequences) : std::vector<int>()),
      most_moves_(layout.tiering.on() ? layout.most_moves() + limits.max_sequences * layout.groups() : 0),
      eager_{limits.max_tokens, limits.max_sequences},
      replayed_{buckets_.empty() ? 0 : buckets_.back(), buckets_.empty() ? 0 : buckets_.back()} {
  CHECK(layout.groups() <= kMaxLayerGroups);
}

size_t BatchBuilder::flat_elements(const Shape& shape) const {
  return 4 * aligned(size_t(shape.max_tokens)) + aligned(size_t(shape.max_sequences) + 1) +
         aligned(size_t(shape.max_sequences)) + move_elements();
}
size_t BatchBuilder::move_elements() const {
  return aligned(size_t(most_moves_) * sizeof(KvMove) / sizeof(int32_t));
}
size_t BatchBuilder::table_elements(const Shape& shape) const {
  return aligned(size_t(shape.max_sequences) * size_t(layout_.row_capacity()));
}

size_t BatchBuilder::staging_elements() const {
  const auto all = [&](const Shape& s) {
    return flat_elements(s) + size_t(layout_.groups()) * table_elements(s);
  };
  return std::max(all(eager_), all(replayed_));
}

void BatchBuilder::reserve(Step& step, StepRunner& runner) const {
  const size_t staging = staging_elements();
  step.staging = {reinterpret_cast<int32_t*>(runner.host_memory(staging * sizeof(int32_t))), staging};
  step.results = {reinterpret_cast<SampleResult*>(runner.host_memory(result_rows() * sizeof(SampleResult))),
                  result_rows()};
  step.table_pitch = layout_.row_capacity();
  step.states.assign(result_rows(), LogitsState::fine);
  step.rows.reserve(size_t(limits_.max_tokens));
  step.row_begin.reserve(size_t(limits_.max_sequences) + 1);
  step.masks.reserve(size_t(limits_.max_sequences));
  step.pools.reserve(size_t(limits_.max_sequences));
}

BatchBuilder::Arrays BatchBuilder::lay_out(Step& step) const {
  const Shape& shape = step.replayable ? replayed_ : eager_;
  size_t used = 0;
  const auto array = [&](size_t n) {
    int32_t* at = step.staging.data() + used;
    used += aligned(n);
    return at;
  };
  const size_t t = size_t(shape.max_tokens), s = size_t(shape.max_sequences);
  Arrays arrays{};
  for (int32_t** each : {&arrays.ids, &arrays.positions, &arrays.row_sequence, &arrays.logit_index})
    *each = array(t);
  arrays.row_starts = array(s + 1);
  arrays.kv_lengths = array(s);
  arrays.moves = reinterpret_cast<KvMove*>(array(move_elements()));
  step.flat_elements = used;
  for (int g = 0; g < layout_.groups(); ++g) arrays.tables[g] = array(table_elements(shape));
  return arrays;
}

// 0: the batch is not of the kind that is recorded. (Of one row, a sequence has at most one logit row.)
int BatchBuilder::padded_rows(const StepPlan& plan) const {
  if (buckets_.empty() || plan.entries.empty()) return 0;
  const auto one_row = [](const PlanEntry& e) { return e.count == 1 && e.samples; };
  if (!std::all_of(plan.entries.begin(), plan.entries.end(), one_row)) return 0;
  return replay_bucket(buckets_, int(plan.entries.size()));
}

void BatchBuilder::build(Step& step, const BlockPool& blocks) const {
  const StepPlan& plan = step.plan;
  const int tokens = plan.tokens, sequences = int(plan.entries.size());
  CHECK(!plan.empty() && tokens <= limits_.max_tokens && sequences <= limits_.max_sequences);
  int stride = 1;
  for (const PlanEntry& e : plan.entries) stride = std::max(stride, e.sequence->table->row_blocks());

  const int padded = padded_rows(plan);
  step.replayable = padded > 0;
  const Arrays to = lay_out(step);
  step.rows.clear();
  step.row_begin.clear();
  step.masks.clear();
  step.pools.clear();
  int32_t row = 0;
  for (int s = 0; s < sequences; ++s) {
    const PlanEntry& entry = plan.entries[size_t(s)];
    to.row_starts[s] = row;
    to.kv_lengths[s] = entry.first + entry.count;
    std::fill_n(to.row_sequence + row, entry.count, s);
    add_tokens(step, entry, row, to.ids, to.positions);
    step.row_begin.push_back(int32_t(step.rows.size()));
    add_rows(step, entry, row, to.logit_index);
    for (int g = 0; g < layout_.groups(); ++g) {
      const auto row = entry.sequence->table->row(g);
      int32_t* const table = to.tables[g] + size_t(s) * size_t(stride);
      if (blocks.tiered())
        std::transform(row.begin(), row.end(), table, [&](BlockId id) { return blocks.ref(id); });
      else
        std::copy(row.begin(), row.end(), table);
      std::fill(table + row.size(), table + stride, kNoKvRef);
    }
    row += entry.count;
  }
  CHECK(row == tokens);
  step.row_begin.push_back(int32_t(step.rows.size()));
  add_moves(step, to.moves);
  count_sparse(step);
  count_work(step, blocks);

  if (!step.replayable) {
    to.row_starts[sequences] = row;
    finish(step, to, tokens, sequences, int(step.rows.size()), stride);
    if (blocks.tiered()) step.batch.prompt_blocks = prompt_blocks(step);
  } else {
    add_padding(step, to, sequences, padded, stride);
    finish(step, to, padded, padded, padded, stride);
  }
}

// As BatchInput has it.
int BatchBuilder::prompt_blocks(const Step& step) const {
  int most = 0;
  for (int g = 0; g < layout_.groups(); ++g) {
    int blocks = 0;
    bool small = false;
    for (size_t s = 0; s < step.plan.entries.size(); ++s) {
      const PlanEntry& entry = step.plan.entries[s];
      if (entry.count == 1) continue;
      const int32_t* refs = step.batch.tables[g] + s * size_t(step.batch.table_stride);
      const int n = layout_.blocks_for(entry.first + entry.count);
      small |= std::any_of(refs, refs + n, [](KvRef ref) { return ref >= 0 && kv_tier(ref) != KvTier::full; });
      blocks += n;
    }
    if (small) most = std::max(most, blocks);
  }
  return most;
}

void BatchBuilder::build_padding(Step& step, int rows) const {
  CHECK(rows > 0 && rows <= replayed_.max_tokens);
  step.replayable = true;
  const Arrays to = lay_out(step);
  step.rows.clear();
  step.masks.clear();
  step.pools.clear();
  step.row_begin.assign(1, 0);
  add_padding(step, to, 0, rows, 1);
  finish(step, to, rows, rows, rows, 1);
}

void BatchBuilder::add_moves(Step& step, KvMove* to) const {
  if (most_moves_ == 0) return;
  CHECK(step.plan.copies.size() + step.plan.moves.size() <= size_t(most_moves_));
  for (const auto* moves : {&step.plan.copies, &step.plan.moves})
    for (const auto& [from, into] : *moves) *to++ = {from, into};
}

void BatchBuilder::add_padding(Step& step, const Arrays& to, int from, int until, int stride) const {
  for (int i = from; i < until; ++i) {
    to.ids[i] = to.positions[i] = to.kv_lengths[i] = 0;
    to.row_sequence[i] = to.row_starts[i] = to.logit_index[i] = i;
  }
  to.row_starts[until] = until;
  for (int g = 0; g < layout_.groups(); ++g)
    std::fill(to.tables[g] + size_t(from) * size_t(stride), to.tables[g] + size_t(until) * size_t(stride),
              kNoBlock);
  step.record.padding = until - from;
}

void BatchBuilder::finish(Step& step, const Arrays& arrays, int tokens, int sequences, int logit_rows,
                          int stride) const {
  const auto& entries = step.plan.entries;
  const auto one_row = [](const PlanEntry& e) { return e.count == 1; };
  step.batch = {.tokens = tokens,
                .sequences = sequences,
                .logit_rows = logit_rows,
                .token_ids = arrays.ids,
                .positions = arrays.positions,
                .row_sequence = arrays.row_sequence,
                .row_starts = arrays.row_starts,
                .kv_lengths = arrays.kv_lengths,
                .logit_index = arrays.logit_index,
                .slot = step.slot,
                .one_row_sequences =
                    step.replayable ? sequences : int(std::count_if(entries.begin(), entries.end(), one_row)),
                .table_stride = stride,
                .groups = layout_.groups(),
                .moves = arrays.moves,
                .move_count = most_moves_ ? int(step.plan.copies.size() + step.plan.moves.size()) : 0};
  std::copy(std::begin(arrays.tables), std::end(arrays.tables), std::begin(step.batch.tables));
}

// A token that is still being sampled by the step before is named by its slot: the device resolves it.
void BatchBuilder::add_tokens(Step& step, const PlanEntry& entry, int32_t row, int32_t* ids,
                              int32_t* positions) const {
  const Sequence& s = *entry.sequence;
  const int known = std::min(entry.count, int(s.ids.size()) - entry.first);
  CHECK(known >= 0 && entry.count - known <= 1, "at most one token is in flight");
  std::copy_n(s.ids.data() + entry.first, known, ids + row);
  if (known < entry.count) ids[row + known] = -1 - s.slot;
  for (int i = 0; i < entry.count; ++i) positions[row + i] = entry.first + i;
}

// Rows whose logits or states are wanted: those that predict a prompt token whose log-probability was asked
// for, those that are pooled, and the last.
void BatchBuilder::add_rows(Step& step, const PlanEntry& entry, int32_t first_row, int32_t* logit_index) const {
  auto& r = static_cast<LiveRequest&>(*entry.sequence);
  const int end = entry.first + entry.count;
  if (r.wants_prompt_logprobs()) {
    for (int p = std::max(entry.first, r.prompt_rows_planned); p < std::min(end, r.prompt_tokens - 1); ++p) {
      logit_index[step.rows.size()] = first_row + (p - entry.first);
      SampleRow row;
      row.target_id = r.ids[size_t(p) + 1];
      row.top_logprobs = r.request.sampling.prompt_top_logprobs;
      step.rows.push_back(row);
      r.prompt_rows_planned = p + 1;
    }
  }
  if (r.pools()) return pool_rows(step, entry, first_row, logit_index);
  if (entry.samples) {
    logit_index[step.rows.size()] = first_row + entry.count - 1;
    step.rows.push_back(sampling_row(r, entry));
    if (r.answer) step.masks.push_back({&r.answer->made, uint32_t(end - r.prompt_tokens + 1)});
  }
}

// The prompt's last row joins those that add_rows has found; a row that was pooled before a preemption is not
// again.
void BatchBuilder::pool_rows(Step& step, const PlanEntry& entry, int32_t first_row,
                             int32_t* logit_index) const {
  auto& r = static_cast<LiveRequest&>(*entry.sequence);
  const int first = step.row_begin.back();
  if (entry.first + entry.count == r.prompt_tokens && r.prompt_rows_planned < r.prompt_tokens) {
    logit_index[step.rows.size()] = first_row + entry.count - 1;
    SampleRow row;
    row.target_id = 0;
    step.rows.push_back(row);
    r.prompt_rows_planned = r.prompt_tokens;
  }
  const int count = int(step.rows.size()) - first;
  const float scale = r.request.pooling == Pooling::mean ? 1.0f / float(r.prompt_tokens) : 1.0f;
  if (count > 0) step.pools.push_back({first, count, scale, r.pooled()});
}

void BatchBuilder::count_sparse(Step& step) const {
  if (!limits_.sparse.on()) return;
  const int groups = int(std::count(layout_.windows.begin(), layout_.windows.end(), 0));
  for (const PlanEntry& entry : step.plan.entries) {
    const int length = entry.first + entry.count;
    if (!limits_.sparse.applies(entry.count, length, 0)) continue;
    step.record.sparse_blocks += groups * layout_.blocks_for(length);
    step.record.sparse_blocks_read += groups * limits_.sparse.kept(length, layout_.block_tokens);
  }
}

void BatchBuilder::count_work(Step& step, const BlockPool& blocks) const {
  StepRecord& record = step.record;
  record.tokens = step.plan.tokens;
  record.sequences = int32_t(step.plan.entries.size());
  record.logit_rows = int32_t(step.rows.size());
  const StepWork work = work_of(step.plan, layout_);
  record.one_token_sequences = work.one_token_sequences;
  record.longest_context = work.longest_context;
  record.context_tokens = work.context_tokens;
  record.prompt_pairs = work.prompt_pairs;
  record.prompt_context_tokens = work.prompt_context_tokens;
  record.weight_bytes = int64_t(cost_.weight_bytes);
  const int64_t left_out = int64_t(record.sparse_blocks - record.sparse_blocks_read) * layout_.block_tokens;
  record.kv_read_bytes = int64_t(double(work.kv_read_tokens - left_out) * double(cost_.kv_bytes_per_token) *
                                 blocks.use().mean_share());
  record.kv_write_bytes = int64_t(step.plan.tokens) * layout_.groups() * int64_t(cost_.kv_bytes_per_token);
  record.flops = cost_.flops_per_token * step.plan.tokens + cost_.flops_per_logit_row * record.logit_rows +
                 cost_.flops_per_attended * work.pairs;
}

}  // namespace sluice
