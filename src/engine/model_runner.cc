#include "engine/model_runner.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/faults.h"
#include "engine/logits_check.h"
#include "engine/planted_faults.h"
#include "sched/transfer_rates.h"
#include "tensor/sampling.h"

namespace sluice {

namespace {

// Whether logits of all these rows are nobody's wish.
bool only_pooled(const Step& step, int first, int count) {
  for (const PoolRows& pool : step.pools) {
    const int begin = std::max(first, pool.first), end = std::min(first + count, pool.first + pool.count);
    count -= std::max(0, end - begin);
  }
  return count == 0;
}

}  // namespace

ModelRunner::ModelRunner(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights,
                         Backend& backend, const ModelRunnerShape& shape)
    : spec_(spec),
      backend_(backend),
      shape_(shape),
      late_masks_(!backend.can_record() && !backend.info().is_card()),
      groups_(groups),
      decoder_(spec, groups_, weights, backend, shape.max_tokens, shape.logit_rows),
      last_ids_(backend.alloc(size_t(shape.max_sequences) * sizeof(int32_t))) {
  for (Buffer& staging : staging_) staging = backend.alloc(shape.staging_bytes);
}

bool ModelRunner::allocated() const {
  return decoder_.activation_bytes() > 0 && staging_[0].data() && staging_[1].data() && last_ids_.data();
}

bool ModelRunner::allocate_pool(int blocks, size_t block_bytes, const KvGeometry& geometry) {
  pool_ = backend_.alloc_pool(size_t(blocks) * block_bytes, geometry);
  kv_ = {pool_.as<std::byte>(), block_bytes, geometry};
  return pool_.data() != nullptr;
}

bool ModelRunner::allocate_host_blocks(int slots) {
  if (slots == 0) return true;
  host_blocks_ = backend_.alloc_host(size_t(slots) * kv_.block_bytes);
  host_copies_.reserve(size_t(most_host_moves(kv_.block_bytes)));
  return host_blocks_.data() != nullptr;
}

StepTimes ModelRunner::times(const Step& step) {
  StepTimes times = backend_.step_times(step.slot);
  if (times.host_copy_ns == 0) times.host_copy_ns = host_copies_ns_[step.slot];
  return times;
}

void ModelRunner::copy_host(const Step& step) {
  host_copies_ns_[step.slot] = 0;
  if (step.plan.host_moves.empty()) return;
  const size_t unit = kv_.block_bytes / kSlotUnits;
  host_copies_.clear();
  for (const HostMove& move : step.plan.host_moves)
    host_copies_.push_back({.pool_offset = size_t(kv_first_unit(move.block)) * unit,
                            .host = host_blocks() + size_t(kv_first_unit(move.place)) * unit,
                            .bytes = size_t(kv_units(kv_tier(move.block))) * unit,
                            .to_host = move.to == nullptr});
  const TimeNs began = now_ns();
  backend_.copy_host({step.slot, pool_.as<std::byte>(), host_copies_});
  if (late_masks_) host_copies_ns_[step.slot] = now_ns() - began;
}

std::byte* ModelRunner::host_memory(size_t bytes) {
  host_.push_back(backend_.alloc_host(bytes));
  CHECK(host_.back().data(), "not enough host memory for the arrays of a step");
  return host_.back().as<std::byte>();
}

void ModelRunner::launch(Step& step) {
  const BatchInput batch = on_device(step);
  stage(step, batch);
  backend_.open_step(step.slot);
  copy_host(step);
  if (batch.move_count > 0)
    backend_.move_blocks({batch, kv_.geometry, pool_.as<std::byte>(), kv_.block_bytes});
  else if (!step.plan.copies.empty())
    backend_.copy_blocks(pool_.as<std::byte>(), kv_.block_bytes, step.plan.copies);
  if (batch.tokens == 0) {
    step.record.graph = GraphUse::none;
  } else if (!step.replayable) {
    run(step, batch);
  } else if (faults::armed() && planted(Fault::graph_miss, step)) {
    step.record.graph = GraphUse::miss;
    run(step, batch);
  } else if (const int key = batch.sequences * kStepsInFlight + step.slot; backend_.replay(key)) {
    step.record.graph = GraphUse::hit;
  } else {
    step.record.graph = GraphUse::miss;
    backend_.begin_recording(key);
    run(step, batch);
    backend_.end_recording(key);
  }
  backend_.submit_step(step.slot);
}

// The same arrays at the same offsets of the slot's memory on the device.
BatchInput ModelRunner::on_device(const Step& step) const {
  BatchInput batch = step.batch;
  int32_t* const base = staging_[step.slot].as<int32_t>();
  const auto moved = [&](const int32_t* p) { return p ? base + (p - step.staging.data()) : nullptr; };
  for (const int32_t** array : {&batch.token_ids, &batch.positions, &batch.row_sequence, &batch.row_starts,
                                &batch.kv_lengths, &batch.logit_index})
    *array = moved(*array);
  batch.moves = reinterpret_cast<const KvMove*>(moved(reinterpret_cast<const int32_t*>(batch.moves)));
  for (const int32_t*& table : batch.tables) table = moved(table);
  batch.table_stride = step.table_pitch;
  batch.last_ids = last_ids_.as<int32_t>();
  return batch;
}

// One piece for all flat arrays, unused ends included: a copy costs by the call, not by these few KiB. Tables
// are as wide as the longest row on the host, and lie at a fixed pitch on the device, where records look.
void ModelRunner::stage(const Step& step, const BatchInput& batch) {
  std::array<Upload, 1 + kMaxLayerGroups> uploads;
  size_t count = 0;
  uploads[count++] = {staging_[step.slot].data(), step.staging.data(), step.flat_elements * sizeof(int32_t)};
  const size_t row = size_t(step.batch.table_stride) * sizeof(int32_t);
  for (int g = 0; g < batch.groups && batch.sequences > 0; ++g)
    uploads[count++] = {
        .device = staging_[step.slot].as<int32_t>() + (step.batch.tables[g] - step.staging.data()),
        .host = step.batch.tables[g],
        .row_bytes = row,
        .rows = size_t(batch.sequences),
        .device_pitch = size_t(step.table_pitch) * sizeof(int32_t),
        .host_pitch = row};
  backend_.stage(step.slot, {uploads.data(), count}, step.rows, batch.logit_rows);
}

void ModelRunner::run(Step& step, const BatchInput& batch) {
  std::optional<OpPlanter> planter;
  if (late_masks_ && faults::armed()) [[unlikely]]
    decoder_.set_watch(&planter.emplace(step, spec_.layers));
  decoder_.forward(batch, kv_);
  if (!step.pools.empty()) pool(step, batch);
  if (late_masks_)
    for (const MaskWait& mask : step.masks) mask.wait();
  for (int first = 0; first < batch.logit_rows; first += shape_.logit_rows) {
    const int count = std::min(shape_.logit_rows, batch.logit_rows - first);
    if (only_pooled(step, first, count)) continue;
    const Tensor logits = decoder_.logits(batch, first, count);
    if (late_masks_ && is_broken(step, logits, first) && first == 0)
      find_broken(step, batch, planter ? &*planter : nullptr);
    const std::span<const SampleRow> rows = step.rows;  // fewer than the batch has, if it is padded
    const size_t from = std::min(size_t(first), rows.size());
    backend_.sample({.logits = logits,
                     .rows = rows.subspan(from, std::min(size_t(count), rows.size() - from)),
                     .results = step.results.subspan(size_t(first), size_t(count)),
                     .last_ids = last_ids_.as<int32_t>(),
                     .softcap = spec_.final_softcap,
                     .slot = step.slot,
                     .first_row = first});
    if (late_masks_) look_after(step, logits, first);
  }
  decoder_.set_watch(nullptr);
}

bool ModelRunner::is_broken(Step& step, const Tensor& logits, int first) {
  bool broken = false;
  for (int64_t r = 0; r < logits.rows; ++r) {
    LogitsState& state = step.states[size_t(first + r)];
    state = look_at_logits(logits.row<float>(r), int(logits.cols));
    broken |= state != LogitsState::fine;
  }
  return broken;
}

// Computes the step again with a look at what each op gives; before anything is sampled, since that replaces
// the ids which the step reads. Seldom: a sequence with a NaN in its cache has one in every step.
void ModelRunner::find_broken(Step& step, const BatchInput& batch, OpWatch* planter) {
  constexpr int64_t kStepsBetween = 64;
  if (step.record.step < look_again_at_) return;
  look_again_at_ = step.record.step + kStepsBetween;
  const bool zeros =
      std::count(step.states.begin(), step.states.begin() + batch.logit_rows, LogitsState::nan) == 0;
  FirstBroken look(zeros, planter);
  decoder_.set_watch(&look);
  decoder_.forward(batch, kv_);
  decoder_.set_watch(nullptr);
  step.record.broken = look.found();
}

// Whether greedy rows got what their logits say.
void ModelRunner::look_after(Step& step, const Tensor& logits, int first) {
  if (faults::armed() && first == 0) [[unlikely]]
    plant_ids(step, int(logits.cols), last_ids_.as<int32_t>());
  for (size_t r = size_t(first), end = std::min(r + size_t(logits.rows), step.rows.size()); r < end; ++r) {
    const SampleRow& row = step.rows[r];
    if (step.states[r] != LogitsState::fine || row.slot < 0 || row.temperature > 0 ||
        sampling::is_adjusted(row))
      continue;
    if (is_unlikely(logits.row<float>(int64_t(r) - first), int(logits.cols), step.results[r].id))
      step.states[r] = LogitsState::unlikely;
  }
}

// The host reads in the midst of the step, so the ops must have done their work when they return, and nothing
// is recorded: Engine::submit takes no pooling on a card.
void ModelRunner::pool(const Step& step, const BatchInput& batch) {
  for (const PoolRows& rows : step.pools) {
    const Tensor states = decoder_.hidden(batch, rows.first, rows.count);
    CHECK(states.dtype == DType::f32 && !step.replayable, "only a CPU pools");
    for (int r = 0; r < rows.count; ++r) {
      const float* state = states.row<float>(r);
      for (int64_t i = 0; i < states.cols; ++i) rows.sum[i] += rows.scale * state[i];
    }
  }
}

}  // namespace sluice
