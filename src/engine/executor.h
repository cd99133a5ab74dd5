// The thread that runs steps. Two bounded queues of one producer and one consumer each: prepared steps in,
// finished ones out. While it runs one step the next lies ready, so the device never waits for the plan.
#pragma once

#include <array>
#include <atomic>
#include <thread>

#include "base/bounded_queue.h"
#include "engine/bell.h"
#include "engine/step_runner.h"

namespace sluice {

class Executor {
 public:
  // `finished_bell` is rung when a step is done. The steps' arrays are sized by the caller (steps()).
  Executor(StepRunner& runner, Bell& finished_bell);
  ~Executor();  // runs what was launched, then joins
  std::array<Step, kStepsInFlight>& steps() { return steps_; }

  // Engine thread. A step that is neither in flight nor finished, or null; it must be launched before the next
  // call.
  Step* free_step();
  void launch(Step* step);
  // The oldest finished step, or null. recycle() makes it free again.
  Step* finished();
  void recycle(Step* step);
  int in_flight() const { return in_flight_; }

  // Any thread: since when the running step runs; 0: none does.
  TimeNs running_since() const { return running_since_.load(std::memory_order_relaxed); }

 private:
  void run();

  StepRunner& runner_;
  Bell& finished_bell_;
  std::array<Step, kStepsInFlight> steps_;
  SpscRing<Step*> prepared_{kStepsInFlight};
  SpscRing<Step*> done_{kStepsInFlight};
  SpscRing<Step*> free_{kStepsInFlight};  // engine thread at both ends
  Step* offered_ = nullptr;
  int in_flight_ = 0;
  Bell prepared_bell_;
  std::atomic<bool> quit_{false};
  std::atomic<TimeNs> running_since_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice
