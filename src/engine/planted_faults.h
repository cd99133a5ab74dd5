// Where faults that tests plant (base/faults.h) meet a step. All of it is asked for only while faults::armed().
#pragma once

#include <optional>

#include "base/faults.h"
#include "engine/step.h"
#include "model/decoder.h"

namespace sluice {

struct PlantedAt {
  size_t entry = 0;  // of the plan: whom it strikes; of rules that name no request, the first
  int64_t amount = 0;
  int64_t nth = 0;  // of which token of its answer
};
std::optional<PlantedAt> planted(Fault fault, const Step& step);

// Before a step runs, on the executor's thread: one that is slow, or the last, which may end by an exception.
void plant_before(const Step& step);

// Breaks what one op gives for one row (nan_logits, flat_logits).
class OpPlanter final : public OpWatch {
 public:
  OpPlanter(const Step& step, int layers);
  void after(int layer, const char* op, const Tensor& out) override;
  explicit operator bool() const { return op_ != nullptr; }

 private:
  const char* op_ = nullptr;
  int layer_ = 0;
  float value_ = 0, scale_ = 0;  // what is broken becomes value + scale · what it was
  int64_t row_ = 0, logit_row_ = 0, tokens_ = 0;
};

// After a step has sampled: ids that the logits did not want (control_ids, id_jumps, repetition). `last_ids` is
// host memory.
void plant_ids(Step& step, int vocab, int32_t* last_ids);

}  // namespace sluice
