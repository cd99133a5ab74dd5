// Runs steps on a real model: the step's arrays to the device, the layers, then logits and sampling in tiles of
// rows. Owns activations, the block pool's memory and the ids last sampled.
//
// Steps that fit a bucket are recorded when they are first met, and replayed from then on: one launch instead
// of hundreds. The records of the two slots differ, since each has its own arrays and results.
#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/step_runner.h"
#include "kv/block_table.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace sluice {

struct ModelRunnerShape {
  int max_tokens = 0;
  int max_sequences = 0;
  int logit_rows = 0;        // per tile; with replay, at least as many as the largest bucket has
  size_t staging_bytes = 0;  // per slot
};

class ModelRunner final : public StepRunner {
 public:
  ModelRunner(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights, Backend& backend,
              const ModelRunnerShape& shape);
  // False: the device had not enough memory.
  bool allocated() const;
  // The block pool, last of all: it takes what memory is left. False: there was not enough.
  bool allocate_pool(int blocks, size_t block_bytes, const KvGeometry& geometry);
  // Host memory for blocks outside the pool, once that is there. False: there was not enough.
  bool allocate_host_blocks(int slots);

  void launch(Step& step) override;
  bool takes_late_masks() const override { return late_masks_; }
  bool done(Step& step) override { return backend_.step_done(step.slot); }
  StepTimes times(const Step& step) override;
  std::byte* host_blocks() override { return host_blocks_.as<std::byte>(); }
  std::byte* host_memory(size_t bytes) override;

  size_t activation_bytes() const { return decoder_.activation_bytes(); }
  // Where not `allocated`: of device memory, what was asked for and not given.
  size_t missing_bytes() const {
    const size_t arrays =
        kStepsInFlight * shape_.staging_bytes + size_t(shape_.max_sequences) * sizeof(int32_t);
    return decoder_.wanted_bytes() - decoder_.activation_bytes() + arrays;
  }
  const KvPool& pool() const { return kv_; }

 private:
  void copy_host(const Step& step);
  BatchInput on_device(const Step& step) const;
  void stage(const Step& step, const BatchInput& batch);
  void run(Step& step, const BatchInput& batch);
  bool is_broken(Step& step, const Tensor& logits, int first);
  void find_broken(Step& step, const BatchInput& batch, OpWatch* planter);
  void look_after(Step& step, const Tensor& logits, int first);
  void pool(const Step& step, const BatchInput& batch);

  const ModelSpec& spec_;
  Backend& backend_;
  const ModelRunnerShape shape_;
  // Ops are done when their call returns: there is a moment before sampling, and the host reads logits.
  const bool late_masks_;
  const LayerGroups groups_;
  Decoder decoder_;
  Buffer pool_;         // [blocks] of block_bytes
  Buffer host_blocks_;  // [slots] of block_bytes
  std::vector<HostCopy> host_copies_;
  TimeNs host_copies_ns_[kStepsInFlight] = {};  // by slot, where copies are done when their call returns
  KvPool kv_;
  Buffer staging_[kStepsInFlight];  // a step's arrays on the device, by slot
  Buffer last_ids_;                 // [slots of sequences]
  std::vector<Buffer> host_;
  int64_t look_again_at_ = 0;  // the step from which on a broken one is computed again
};

}  // namespace sluice
