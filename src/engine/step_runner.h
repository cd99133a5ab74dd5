// What runs a step: the model on its backend, or a script in tests.
#pragma once

#include "engine/step.h"

namespace sluice {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // On the executor's thread, steps in order. Fills step.results for step.rows; a row's slot keeps its id for
  // the placeholder tokens of the next step. Allocates nothing.
  virtual void run(Step& step) = 0;
};

}  // namespace sluice
