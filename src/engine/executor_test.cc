// The executor's thread over a fake device that computes when it is told to.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <csignal>

#include "engine/fake_runner.h"

namespace sluice {
namespace {

using Device = FakeRunner::Device;

// Steps without tokens: what matters here is when they are launched and when they are done.
struct Bench {
  explicit Bench(Device device, TimeNs patience = Executor::kPatience)
      : runner({.block_tokens = 4, .windows = {0}, .max_length = 8}, 4, 1, 10, device),
        executor(runner, bell, patience) {}
  ~Bench() { runner.let_go(); }

  Step* launch(int64_t number = 0) {
    Step* step = executor.free_step();
    CHECK(step);
    step->record = {.step = number};
    executor.launch(step);
    return step;
  }
  Step* await_finished() {
    for (;;) {
      const uint32_t heard = bell.count();
      if (Step* step = executor.finished()) return step;
      bell.wait(heard);
    }
  }
  void await_sleep() {
    while (!executor.asleep()) std::this_thread::yield();
  }

  Bell bell;
  FakeRunner runner;
  Executor executor;
};

TEST(Executor, TheNextStepIsLaunchedBeforeTheOneUnderWayIsDone) {
  Bench b(Device::behind_the_host);
  b.runner.hold();
  Step *first = b.launch(), *second = b.launch();
  EXPECT_NE(first->slot, second->slot);
  EXPECT_EQ(b.executor.free_step(), nullptr) << "two are in flight";
  b.runner.await_begun(2);
  EXPECT_EQ(b.runner.computed(), 0);
  EXPECT_EQ(b.executor.finished(), nullptr);
  EXPECT_NE(b.executor.running_since(), 0);

  b.runner.release();
  EXPECT_EQ(b.await_finished(), first);
  EXPECT_EQ(b.executor.finished(), nullptr) << "the second is still held";
  b.executor.recycle(first);
  EXPECT_EQ(b.launch(), first) << "its slot is free again";
  b.runner.await_begun(3);
  EXPECT_EQ(b.runner.computed(), 1);

  b.runner.release(2);
  EXPECT_EQ(b.await_finished(), second);
  EXPECT_EQ(b.await_finished(), first);
  b.await_sleep();
  EXPECT_EQ(b.executor.running_since(), 0);
}

TEST(Executor, StepsEndInOrderAndTheirTimesDoNotOverlap) {
  Bench b(Device::behind_the_host);
  TimeNs last_end = 0;
  b.launch();
  for (int i = 0; i < 200; ++i) {
    b.launch();
    Step* step = b.await_finished();
    EXPECT_EQ(step->slot, i % kStepsInFlight);
    const StepRecord& r = step->record;
    EXPECT_GE(r.execute_at, last_end);
    EXPECT_GE(r.execute_ns, 0);
    EXPECT_GE(r.launch_ns, 0);
    EXPECT_GE(r.idle_ns, 0);
    last_end = r.execute_at + r.execute_ns;
    b.executor.recycle(step);
  }
  b.executor.recycle(b.await_finished());
}

TEST(Executor, SleepsWhenNothingIsUnderWay) {
  Bench b(Device::behind_the_host);
  b.await_sleep();
  EXPECT_EQ(b.runner.looks(), 0);
  for (int i = 0; i < 3; ++i) {
    b.launch();
    b.executor.recycle(b.await_finished());
    b.await_sleep();
  }
}

// The CPU's executor: one look per step, at once; never a second.
TEST(Executor, ADeviceThatIsDoneAtOnceIsNotPolled) {
  Bench b(Device::in_launch);
  for (int i = 1; i <= 50; ++i) {
    b.launch();
    b.executor.recycle(b.await_finished());
    EXPECT_EQ(b.runner.looks(), i);
  }
  b.await_sleep();
  EXPECT_EQ(b.runner.looks(), 50);
}

// A device with a clock of its own.
class ClockedRunner final : public StepRunner {
 public:
  void launch(Step& step) override { step.record.graph = GraphUse::hit; }
  StepTimes times(const Step&) override {
    return {.busy_ns = 70, .idle_ns = 8, .to_device_ns = 5, .to_host_ns = 3};
  }
};

TEST(Executor, TheDevicesClockIsTaken) {
  ClockedRunner runner;
  Bell bell;
  Executor executor(runner, bell);
  Step* step = executor.free_step();
  executor.launch(step);
  while (!executor.finished()) std::this_thread::yield();
  EXPECT_EQ(step->record.execute_ns, 70);
  EXPECT_EQ(step->record.idle_ns, 8);
  EXPECT_EQ(step->record.kernels_ns, 70);
  EXPECT_EQ(step->record.to_device_ns, 5);
  EXPECT_EQ(step->record.to_host_ns, 3);
  EXPECT_EQ(step->record.graph, GraphUse::hit);
}

TEST(Executor, ADeviceThatNeverEndsAStepEndsTheProcess) {
  EXPECT_EXIT(
      {
        Bench b(Device::behind_the_host, 1'000'000);
        b.runner.hold();
        b.launch(5);
        b.await_finished();
      },
      testing::KilledBySignal(SIGABRT), "a step ends.*the device does not answer");
}

TEST(Executor, StepsUnderWayCanBeShown) {
  Bench b(Device::behind_the_host);
  b.runner.hold();
  b.launch(5);
  b.launch(6);
  b.runner.await_begun(2);
  std::vector<int64_t> shown;
  b.executor.for_each_under_way([&](const StepRecord& r) { shown.push_back(r.step); });
  EXPECT_EQ(shown, (std::vector<int64_t>{5, 6}));
}

}  // namespace
}  // namespace sluice
