#include "cli/machine_binding.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <future>
#include <iterator>
#include <string>
#include <thread>

#include "base/cpu_set.h"

namespace sluice::cli {
namespace {

// A thread by an engine's name, that lives as long as this does.
class Named {
 public:
  explicit Named(const char* name)
      : thread_([this] {
          id_.set_value(gettid());
          over_.get_future().wait();
        }) {
    pthread_setname_np(thread_.native_handle(), name);
    id = id_.get_future().get();
  }
  ~Named() {
    over_.set_value();
    thread_.join();
  }
  int id = 0;

 private:
  std::promise<int> id_;
  std::promise<void> over_;
  std::thread thread_;
};

Config with_engine_cpu(int cpu) {
  Config config;
  config.model.device = "cpu";
  config.machine.engine_cpu = cpu;
  return config;
}

// While two engines are there, as in a swap.
TEST(MachineBinding, TheThreadsOfAnEngineThatWasThereBeforeStayWhereTheyAre) {
  const CpuSet all = allowed_cpus(0);
  if (all.size() < 2) GTEST_SKIP() << "one CPU is here";
  const int last = *std::prev(all.end());
  Result<MachineBinding> binding = MachineBinding::make(with_engine_cpu(last));
  ASSERT_TRUE(binding.ok()) << binding.error().message;
  std::thread loads([&] {
    Named old("sluice-engine");
    binding->enter_load();
    Named its("sluice-engine");
    ASSERT_NE(old.id, its.id);
    const MachineReport report = binding->settle(1);
    EXPECT_EQ(cpu_list(allowed_cpus(its.id)), std::to_string(last));
    EXPECT_EQ(cpu_list(allowed_cpus(old.id)), cpu_list(all));
    int told = 0;
    for (const MachineReport::Threads& threads : report.threads) told += threads.name == "sluice-engine";
    EXPECT_EQ(told, 1) << "of the model that is served";
    // The next load's engine is the one that goes there; the one before stays too.
    binding->enter_load();
    Named next("sluice-engine");
    binding->settle(1);
    EXPECT_EQ(cpu_list(allowed_cpus(next.id)), std::to_string(last));
    EXPECT_EQ(cpu_list(allowed_cpus(old.id)), cpu_list(all));
  });
  loads.join();
}

}  // namespace
}  // namespace sluice::cli
