#include "engine/model_runner.h"

#include <algorithm>

namespace sluice {

ModelRunner::ModelRunner(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights,
                         Backend& backend, const ModelRunnerShape& shape)
    : spec_(spec),
      backend_(backend),
      shape_(shape),
      groups_(groups),
      decoder_(spec, groups_, weights, backend, shape.max_tokens, shape.logit_rows),
      pool_(backend.alloc(size_t(shape.blocks) * shape.block_bytes)),
      staging_(backend.alloc(shape.staging_bytes)),
      last_ids_(backend.alloc(size_t(shape.max_sequences) * sizeof(int32_t))) {}

void ModelRunner::run(Step& step) {
  backend_.copy_in(staging_.data(), step.staging.data(), step.staging_used * sizeof(int32_t));
  BatchInput batch = step.batch;
  const auto on_device = [&](const int32_t* p) {
    return p ? staging_.as<int32_t>() + (p - step.staging.data()) : nullptr;
  };
  for (const int32_t** array : {&batch.token_ids, &batch.positions, &batch.row_sequence, &batch.row_starts,
                                &batch.kv_lengths, &batch.logit_index})
    *array = on_device(*array);
  for (const int32_t*& table : batch.tables) table = on_device(table);
  batch.last_ids = last_ids_.as<int32_t>();

  decoder_.forward(batch, {pool_.as<std::byte>(), shape_.block_bytes, shape_.geometry});
  for (int first = 0; first < batch.logit_rows; first += shape_.logit_rows) {
    const int count = std::min(shape_.logit_rows, batch.logit_rows - first);
    const Tensor logits = decoder_.logits(batch, first, count);
    backend_.sample({.logits = logits,
                     .rows = {step.rows.data() + first, size_t(count)},
                     .results = {step.results.data() + first, size_t(count)},
                     .last_ids = last_ids_.as<int32_t>(),
                     .softcap = spec_.final_softcap});
  }
  backend_.finish_step();
}

}  // namespace sluice
