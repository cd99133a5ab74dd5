#include "engine/executor.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>

#include "engine/planted_faults.h"

namespace sluice {
namespace {

// Between two looks at a device: a fraction of a microsecond, for the sake of the core's other thread and of
// the driver's lock. Now and then the core is offered to whoever else wants it, since small machines run the
// engine's and the network's threads on it.
constexpr int kPausesPerLook = 16, kLooksPerYield = 16;

void pause_between_looks(uint32_t looks) {
  for (int i = 0; i < kPausesPerLook; ++i) _mm_pause();
  if (looks % kLooksPerYield == 0) std::this_thread::yield();
}

}  // namespace

Executor::Executor(StepRunner& runner, Bell& finished_bell, TimeNs patience)
    : runner_(runner), finished_bell_(finished_bell), patience_(patience) {
  int slot = 0;
  for (Step& step : steps_) {
    step.slot = slot++;
    free_.push(&step);
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "sluice-executor");  // as engine.cc says
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
  idle_since_ = now_ns();
  TimeNs quiet_since = 0;  // while steps are under way: when one was last launched or ended
  for (uint32_t looks = 0;;) {
    const uint32_t heard = prepared_bell_.count();
    const bool launched = launch_prepared();  // first: a device that runs dry waits for it
    const bool finished = take_finished();
    if (launched || finished) {
      looks = 0;
      quiet_since = now_ns();
    } else if (launched_.load() != ended_.load()) {
      pause_between_looks(++looks);
      if (looks % kLooksPerYield != 0 || now_ns() - quiet_since <= patience_) continue;
      // Nothing can be taken back from a device that has stopped: the process ends, with the steps under way.
      // But look again first: it may have been this process that was stopped (a debugger, a suspended machine).
      if (!take_finished()) check_failed("a step ends", __FILE__, __LINE__, "the device does not answer");
      looks = 0;
      quiet_since = now_ns();
    } else {
      if (quit_.load()) return;
      prepared_bell_.wait(heard);
    }
  }
}

bool Executor::launch_prepared() {
  const uint32_t turn = launched_.load();
  Step* step = nullptr;
  if (turn - ended_.load() == kStepsInFlight || !prepared_.pop(step)) return false;
  StepRecord& record = step->record;
  record.execute_at = now_ns();
  if (turn == ended_.load()) running_since_.store(record.execute_at, std::memory_order_relaxed);
  under_way_[turn % kStepsInFlight].store(step);
  launched_.store(turn + 1);
  const TimeNs cpu = thread_cpu_ns();
  if (faults::armed()) [[unlikely]]
    plant_before(*step);
  runner_.launch(*step);
  if (faults::armed()) [[unlikely]]
    step->failed |= planted(Fault::step_failure, *step).has_value();
  record.launch_ns = now_ns() - record.execute_at;
  record.launch_off_cpu_ns = std::max<TimeNs>(0, record.launch_ns - (thread_cpu_ns() - cpu));
  return true;
}

bool Executor::take_finished() {
  const uint32_t turn = ended_.load();
  if (turn == launched_.load()) return false;
  Step* step = under_way_[turn % kStepsInFlight].load();
  if (!runner_.done(*step)) return false;
  const TimeNs now = now_ns();
  StepRecord& record = step->record;
  const StepTimes device = runner_.times(*step);
  record.host_copy_ns = device.host_copy_ns;
  record.kernels_ns = device.busy_ns, record.to_device_ns = device.to_device_ns;
  record.to_host_ns = device.to_host_ns;
  if (device.busy_ns > 0) {
    record.execute_ns = device.busy_ns;
    record.idle_ns = device.idle_ns;
    record.execute_at = std::max(record.execute_at, now - device.busy_ns);
  } else {  // launched behind another step, it began when that one ended
    record.idle_ns = std::max<TimeNs>(0, record.execute_at - idle_since_);
    record.execute_at = std::max(record.execute_at, idle_since_);
    record.execute_ns = now - record.execute_at;
  }
  idle_since_ = now;
  ended_.store(turn + 1);
  running_since_.store(turn + 1 == launched_.load() ? 0 : now, std::memory_order_relaxed);
  CHECK(done_.push(step));
  finished_bell_.ring();
  return true;
}

}  // namespace sluice
