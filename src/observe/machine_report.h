// Where a server's threads were to run, and where the kernel says that they may. Written at start by whoever
// bound them (cli/machine_binding.h).
#pragma once

#include <string>
#include <vector>

namespace sluice {

struct MachineReport {
  struct Threads {
    std::string name;
    int count = 0;
    std::string cpus;     // as the kernel has it: "0-3,8"
    std::string refused;  // why they are not where the plan wants them; empty: they are
  };
  std::string plan;  // a line or two
  std::vector<Threads> threads;
};

}  // namespace sluice
