// Whether logits are what a model gives, and where a step went wrong if not. On the executor's thread, for
// devices whose ops have done their work when they return (the CPU).
//
// Each row is looked at in a few places only: a NaN anywhere in a row's hidden state makes all of its logits
// NaN, and logits that are all the same are so in any of them. That costs nothing beside a step; reading whole
// rows cost 1 % of one of SmolLM2.
#pragma once

#include "engine/logits_state.h"
#include "engine/step_record.h"
#include "model/decoder.h"
#include "tensor/backend.h"

namespace sluice {

LogitsState look_at_logits(const float* row, int vocab);

// Some id of those that are looked at has a larger logit than `id`: so it is not the likeliest.
bool is_unlikely(const float* row, int vocab, int32_t id);

// Finds the first op whose output has a row that is not numbers or, where `zeros`, is all 0.
class FirstBroken final : public OpWatch {
 public:
  // `also` is asked before each look; null: nobody.
  FirstBroken(bool zeros, OpWatch* also) : zeros_(zeros), also_(also) {}
  void after(int layer, const char* op, const Tensor& out) override;
  BrokenOp found() const { return found_; }

 private:
  bool is_broken(const float* row, int64_t n) const;
  const bool zeros_;
  OpWatch* const also_;
  BrokenOp found_;
};

}  // namespace sluice
