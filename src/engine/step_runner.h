// What runs a step: the model on its backend, or a script in tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/step.h"

namespace sluice {

// Called by the executor's thread, except host_memory (before the first step). At most kStepsInFlight steps
// with different slots are under way; they are launched, and end, in order.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Enqueues all of the step; a device that works behind the host has yet to do it. Once done, step.results are
  // filled for step.rows, and a row's slot keeps its id for the placeholder tokens of the next step. Sets
  // record.graph. Allocates nothing.
  virtual void launch(Step& step) = 0;
  // Whether launch itself waits for step.masks, before it samples. Else they are made before it is called.
  virtual bool takes_late_masks() const { return false; }
  // Whether the step's results can be read. Where launch does the work, always.
  virtual bool done(Step& step) { return true; }
  // Of a step that is done.
  virtual StepTimes times(const Step& step) { return {}; }

  // Host memory of blocks outside the pool, which step.plan.host_moves name places in, cut as the pool is;
  // null: there is none.
  virtual std::byte* host_blocks() { return nullptr; }

  // Zero-filled host memory that the device reads and writes by itself, for as long as the runner lives.
  virtual std::byte* host_memory(size_t bytes) {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return memory_.back().get();
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace sluice
