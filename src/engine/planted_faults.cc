#include "engine/planted_faults.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "sched/sequence.h"

namespace sluice {

std::optional<PlantedAt> planted(Fault fault, const Step& step) {
  const auto& entries = step.plan.entries;
  if (entries.empty()) return {};
  const auto nth = [](const PlanEntry& e) {
    return int64_t(e.first) + e.count - e.sequence->prompt_tokens + 1;
  };
  if (const auto amount = faults::met(fault, step.record.step)) return PlantedAt{0, *amount, nth(entries[0])};
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].samples) continue;
    if (const auto amount = faults::met(fault, entries[i].sequence->request.id, nth(entries[i])))
      return PlantedAt{i, *amount, nth(entries[i])};
  }
  return {};
}

void plant_before(const Step& step) {
  if (const auto at = planted(Fault::slow_step, step)) faults::burn_ms(at->amount);
  CHECK(!planted(Fault::device_error, step), "the device is lost (SLUICE_FAULTS)");
  if (faults::met_at(Fault::engine_exception, {1}, step.record.step))
    throw std::runtime_error("planted on the executor's thread (SLUICE_FAULTS)");
}

OpPlanter::OpPlanter(const Step& step, int layers) {
  std::optional<PlantedAt> at = planted(Fault::nan_logits, step);
  if (at) {
    op_ = "down", layer_ = int(at->amount), value_ = std::numeric_limits<float>::quiet_NaN();
  } else if ((at = planted(Fault::flat_logits, step))) {
    op_ = "norm", layer_ = layers - 1;
  } else if ((at = planted(Fault::weak_logits, step))) {
    op_ = "norm", layer_ = layers - 1, scale_ = 0.1f;
  } else {
    return;
  }
  const BatchInput& batch = step.batch;
  row_ = batch.row_starts[at->entry + 1] - 1;
  logit_row_ = step.row_begin[at->entry + 1] - 1;
  tokens_ = batch.tokens;
}

void OpPlanter::after(int layer, const char* op, const Tensor& out) {
  if (!op_ || layer != layer_ || std::strcmp(op, op_) != 0 || out.dtype != DType::f32) return;
  float* row = out.row<float>(out.rows == tokens_ ? row_ : logit_row_);
  for (int64_t i = 0; i < out.cols; ++i) row[i] = value_ + (scale_ > 0 ? scale_ * row[i] : 0);
}

void plant_ids(Step& step, int vocab, int32_t* last_ids) {
  const auto plant = [&](Fault fault, auto id_of) {
    const auto at = planted(fault, step);
    if (!at) return;
    const size_t row = size_t(step.row_begin[at->entry + 1] - 1);
    const int32_t id = int32_t(uint64_t(id_of(*at)) % uint64_t(vocab));
    step.results[row].id = id;
    if (step.rows[row].slot >= 0) last_ids[step.rows[row].slot] = id;
  };
  plant(Fault::control_ids, [](const PlantedAt& at) { return at.amount; });
  plant(Fault::repetition, [](const PlantedAt& at) { return at.amount + at.nth % 3; });
  // From one end of the vocabulary to the other and back, never twice to the same place.
  plant(Fault::id_jumps,
        [&](const PlantedAt& at) { return at.nth % 2 ? at.nth * 7 : vocab - 1 - at.nth * 11; });
}

}  // namespace sluice
