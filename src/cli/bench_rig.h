// The engine's steps without its scheduler: sequences of any length at any depth, planned by hand, built, run
// and taken back by the very parts that serve (BatchBuilder, Executor, ModelRunner).
#pragma once

#include <memory>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/bell.h"
#include "engine/executor.h"
#include "engine/make_engine.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace sluice::cli {

struct RigSizes {
  int max_batch = 1;
  int max_length = 0;  // of a sequence
};

// What a run of steps took.
struct RunTime {
  double wall_s = 0;
  double device_s = 0;  // busy, as the device saw it
  double idle_s = 0;    // the device waited between two of these steps
  int steps = 0;
  int replayed = 0;
};

class BenchRig {
 public:
  // Referenced objects outlive it. Errors: make_steps'.
  static Result<std::unique_ptr<BenchRig>> make(const ModelSpec& spec, const Weights& weights, Backend& backend,
                                                EngineConfig config, const RigSizes& sizes);
  ~BenchRig();

  const KvGeometry& geometry() const { return steps_.runner->pool().geometry; }
  int step_tokens() const { return steps_.limits.max_tokens; }
  bool records() const { return backend_.can_record(); }

  // Sequence 0 as it is once so many tokens have landed, its older blocks in the precision that they then have.
  void fill(int depth);
  // What blocks take, of what they would in full precision.
  double kv_share() const { return blocks_.use().mean_share(); }
  // `tokens` prompt tokens of sequence 0 from position `depth` on, in steps of at most step_tokens, the last of
  // which samples.
  RunTime prefill(int depth, int tokens);
  // After fill: the first `depth` tokens of sequence 0 to the others: same work for attention, without
  // computing it again.
  void spread_depth(int batch, int depth);
  // `tokens` steps of `batch` sequences from position `depth` on, greedy.
  RunTime decode(int batch, int depth, int tokens);

 private:
  BenchRig(const ModelSpec& spec, Backend& backend, ModelSteps steps, const RigSizes& sizes);
  int32_t made_up_id(int position) const;
  void forget_all_but(LiveRequest& sequence, int length) const;
  Step& next_step();
  void launch(Step& step);
  void age(BlockTable& table, int landed);
  void take_back(Step& step);
  RunTime finish(TimeNs start);

  const ModelSpec& spec_;
  Backend& backend_;
  ModelSteps steps_;
  BatchBuilder builder_;
  BlockPool blocks_;
  std::vector<BlockTable> tables_;                       // [max_batch]
  std::vector<std::unique_ptr<LiveRequest>> sequences_;  // [max_batch]
  RunTime run_;
  Bell finished_;
  Executor executor_;
};

}  // namespace sluice::cli
