// The thread that runs steps. Two bounded queues of one producer and one consumer each: prepared steps in,
// finished ones out.
//
// A device that works behind the host is given the next step while one runs, so that it never waits for the
// plan. While steps are under way the thread looks in turn for a prepared one and for the end of the oldest: it
// spins, since a wake-up costs more than a look and comes out of every step. With nothing under way it sleeps.
// A device whose launch does the work (the CPU) is done at once, so there it never spins. A device that for a
// minute ends nothing hangs, and the process ends (check.h) with the records of the steps under way.
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
  static constexpr TimeNs kPatience = 60'000'000'000;  // far beyond any step; tests have less

  // `finished_bell` is rung when a step is done. The steps' arrays are sized by the caller (steps()).
  Executor(StepRunner& runner, Bell& finished_bell, TimeNs patience = kPatience);
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
  // Any thread: nothing is under way, and the thread waits for the next step.
  bool asleep() const { return prepared_bell_.sleepers() > 0; }
  // For a process that is about to end: records of the steps under way, oldest first. They may be changing.
  template <typename F>
  void for_each_under_way(F&& look) const {
    for (uint32_t turn = ended_.load(); turn != launched_.load(); ++turn)
      if (const Step* step = under_way_[turn % kStepsInFlight].load()) look(step->record);
  }

 private:
  void run();
  bool launch_prepared();
  bool take_finished();

  StepRunner& runner_;
  Bell& finished_bell_;
  const TimeNs patience_;
  std::array<Step, kStepsInFlight> steps_;
  SpscRing<Step*> prepared_{kStepsInFlight};
  SpscRing<Step*> done_{kStepsInFlight};
  SpscRing<Step*> free_{kStepsInFlight};  // engine thread at both ends
  Step* offered_ = nullptr;
  int in_flight_ = 0;
  Bell prepared_bell_;
  std::atomic<bool> quit_{false};
  std::atomic<TimeNs> running_since_{0};

  // Executor thread; others only look.
  std::array<std::atomic<Step*>, kStepsInFlight> under_way_{};
  std::atomic<uint32_t> launched_{0}, ended_{0};
  TimeNs idle_since_ = 0;  // the end of the last step, as seen by the host
  std::thread thread_;     // last: it uses all of the above
};

}  // namespace sluice
