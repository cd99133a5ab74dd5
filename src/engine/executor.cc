#include "engine/executor.h"

#include <pthread.h>

namespace sluice {

Executor::Executor(StepRunner& runner, Bell& finished_bell) : runner_(runner), finished_bell_(finished_bell) {
  for (Step& step : steps_) free_.push(&step);
  thread_ = std::thread([this] { run(); });
}

Executor::~Executor() {
  quit_.store(true);
  prepared_bell_.ring();
  thread_.join();
}

Step* Executor::free_step() {
  if (!offered_) free_.pop(offered_);
  return offered_;
}

void Executor::launch(Step* step) {
  CHECK(step == offered_);
  offered_ = nullptr;
  ++in_flight_;
  CHECK(prepared_.push(step));
  prepared_bell_.ring();
}

Step* Executor::finished() {
  Step* step = nullptr;
  if (done_.pop(step)) --in_flight_;
  return step;
}

void Executor::recycle(Step* step) { CHECK(free_.push(step)); }

void Executor::run() {
  pthread_setname_np(pthread_self(), "sluice-executor");
  TimeNs idle_since = now_ns();
  for (;;) {
    const uint32_t heard = prepared_bell_.count();
    Step* step = nullptr;
    if (!prepared_.pop(step)) {
      if (quit_.load()) return;
      prepared_bell_.wait(heard);
      continue;
    }
    StepRecord& record = step->record;
    record.execute_at = now_ns();
    record.idle_ns = record.execute_at - idle_since;
    running_since_.store(record.execute_at, std::memory_order_relaxed);
    runner_.run(*step);
    idle_since = now_ns();
    running_since_.store(0, std::memory_order_relaxed);
    record.execute_ns = idle_since - record.execute_at;
    CHECK(done_.push(step));
    finished_bell_.ring();
  }
}

}  // namespace sluice
