// Carries out the plan of engine/machine_plan.h: this process to its CPUs, the loading thread and what it
// starts to the model's, the threads that serve to their own. What the kernel refuses is said once, and the
// server runs where the kernel puts it.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "cli/config.h"
#include "engine/machine_plan.h"
#include "observe/machine_report.h"

namespace sluice::cli {

class MachineBinding {
 public:
  // Reads the machine, checks the settings and binds the calling thread, so all of the process, to
  // machine.cpu_set. Call it before other threads start. Errors: a setting that makes no sense here.
  static Result<MachineBinding> make(const Config& config);

  // By the thread that is about to load the model: finds the card, plans again with it, and goes to the model's
  // place, to stay: what it starts and the memory that it touches will be there.
  void enter_load();
  // Once everything runs: threads to their places, and what the kernel made of it. Threads of other engines,
  // which go by the same names and were there before enter_load, stay where they are and untold. `cpu_threads`:
  // of the backend's team; 0: the model runs on a card.
  MachineReport settle(int cpu_threads);

  const MachinePlan& plan() const { return plan_; }

 private:
  MachineBinding(const Config& config, Topology topology);
  Status replan();

  std::string device_;
  Topology topology_;
  MachineWish wish_;
  MachinePlan plan_;
  std::vector<int> engines_before_;  // threads of engines that were there before the load; sorted
};

// For a command whose threads are all of the load: make and enter_load.
Status bind_to_machine(const Config& config);

}  // namespace sluice::cli
