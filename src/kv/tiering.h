// When blocks of keys and values go to a smaller tier: a policy over blocks, in plain numbers. A block is
// written in full precision and converted once it is whole, has landed, and lies so far behind its sequence's
// newest token; under pressure of the pool sooner.
#pragma once

#include <algorithm>
#include <array>

#include "tensor/kv_tier.h"

namespace sluice {

struct KvTiering {
  struct Stage {
    KvTier tier = KvTier::full;
    int age_tokens = 0;  // from the block's end to the newest token that has landed
  };
  std::array<Stage, 2> stages{};  // the later has the smaller tier, and the higher age
  int count = 0;                  // of stages; 0: everything stays in full precision

  bool on() const { return count > 0; }
  int smallest_units() const { return on() ? kv_units(stages[size_t(count - 1)].tier) : kSlotUnits; }
  // The same with ages multiplied by `patience`, 0..1.
  KvTiering hurried(double patience) const {
    KvTiering t = *this;
    for (Stage& stage : t.stages) stage.age_tokens = int(stage.age_tokens * patience);
    return t;
  }
};

}  // namespace sluice
