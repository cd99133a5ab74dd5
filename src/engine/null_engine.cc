#include "engine/null_engine.h"

#include <algorithm>
#include <cmath>

#include "engine/make_engine.h"

namespace sluice {
namespace {

class NullRunner final : public StepRunner {
 public:
  explicit NullRunner(int vocab) : vocab_(vocab), logprob_(-std::log(float(vocab))) {}

  bool takes_late_masks() const override { return true; }

  void launch(Step& step) override {
    for (const MaskWait& mask : step.masks) mask.wait();
    for (const PoolRows& pool : step.pools) pool.sum[0] = 1;
    for (size_t i = 0; i < step.rows.size(); ++i) answer(step.rows[i], step.results[i]);
  }

 private:
  void answer(const SampleRow& row, SampleResult& result) const {
    result.id = row.target_id >= 0 ? row.target_id : sample(row);
    result.logprob = logprob_;
    result.rank = 0;
    result.top_count = std::max(0, row.top_logprobs);
    for (int i = 0; i < result.top_count; ++i) result.top_ids[i] = i, result.top_logprobs[i] = logprob_;
  }

  // Words, as long as there is a choice: the made-up vocabulary begins with the 256 bytes.
  int32_t sample(const SampleRow& row) const {
    constexpr int kBytes = 256;
    const auto first = int32_t(kBytes + row.counter % uint64_t(vocab_ - kBytes));
    for (int32_t id = first; id < vocab_; ++id)
      if (may_come(row, id)) return id;
    for (int32_t id = 0; id < first; ++id)
      if (may_come(row, id)) return id;
    return first;
  }

  static bool may_come(const SampleRow& row, int32_t id) {
    if (row.mask) return row.mask[id / 32] >> (id % 32) & 1;
    return std::find(row.banned_ids, row.banned_ids + row.banned_count, id) ==
           row.banned_ids + row.banned_count;
  }

  const int vocab_;
  const float logprob_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_null_engine(const ModelSpec& spec, std::vector<int32_t> end_ids,
                                                 const EngineConfig& wished) {
  EngineInfo info;
  info.device.name = "no device";
  info.device.instruction_set = "computes nothing";
  const EngineConfig config = settled(wished, info.device);
  const Result<Policy> policy = policy_of(config);
  if (!policy) return policy.error();

  const KvLayout layout{.block_tokens = config.block_tokens,
                        .windows = {0},
                        .max_length = config.max_context ? config.max_context : spec.context,
                        .max_step_tokens = policy->step_tokens};
  info.spec = spec;
  info.context = layout.max_length;
  info.block_tokens = layout.block_tokens;
  info.blocks = std::max(layout.peak_blocks(layout.max_length),
                         config.max_sequences * layout.blocks_for(kModerateContext));
  info.end_ids = std::move(end_ids);
  return make_engine(std::move(info), *policy, layout, ModelCost{}, std::make_unique<NullRunner>(spec.vocab));
}

}  // namespace sluice
