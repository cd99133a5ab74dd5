// Runs steps on a real model: one copy of the step's arrays to the device, the layers, then logits and sampling
// in tiles of rows. Owns activations, the block pool's memory and the ids last sampled. Used by the executor's
// thread.
#pragma once

#include <vector>

#include "engine/step_runner.h"
#include "kv/block_table.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace sluice {

struct ModelRunnerShape {
  int max_tokens = 0;
  int max_sequences = 0;
  int logit_rows = 0;  // per tile
  int blocks = 0;
  size_t block_bytes = 0;
  size_t staging_bytes = 0;
  KvGeometry geometry;
};

class ModelRunner final : public StepRunner {
 public:
  ModelRunner(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights, Backend& backend,
              const ModelRunnerShape& shape);
  void run(Step& step) override;
  // False: the device had not enough memory.
  bool allocated() const {
    return decoder_.activation_bytes() > 0 && pool_.data() && staging_.data() && last_ids_.data();
  }
  size_t activation_bytes() const { return decoder_.activation_bytes(); }

 private:
  const ModelSpec& spec_;
  Backend& backend_;
  const ModelRunnerShape shape_;
  const LayerGroups groups_;
  Decoder decoder_;
  Buffer pool_;      // [blocks] of block_bytes
  Buffer staging_;   // the step's arrays on the device
  Buffer last_ids_;  // [slots]
};

}  // namespace sluice
