// What a row of logits looked like to the runner, where that can read them (on a CPU).
#pragma once

#include <cstdint>

namespace sluice {

enum class LogitsState : uint8_t {
  fine,
  nan,       // not numbers
  flat,      // all the same
  unlikely,  // of a greedy row, whose id was chosen though others have larger logits
};

}  // namespace sluice
