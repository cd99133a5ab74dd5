// Where the threads and the memory of a server go on a machine: a pure function of how the machine lies, the
// cards that are used, and what was wished. cli/machine_binding.h carries it out.
//
// Threads are bound to sets of CPUs and not to single ones, so that the kernel still moves a thread whose core
// is taken; where nothing is to be won (one memory node, no wishes), nothing is bound.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/topology.h"

namespace sluice {

// As configured (machine.*).
struct MachineSettings {
  std::string numa = "auto";  // auto; off; the number of a node that everything stays on
  std::string cpu_set = {};   // CPUs that may be used, "0-7,16"; empty: all
  int io_threads = 0;         // cores kept for network and text threads; 0: none are
  int engine_cpu = -1;        // for the engine's thread alone; -1: none is
};

struct MachineWish {
  MachineSettings settings = {};
  int cpu_threads = 0;           // of the CPU backend's team; 0: one per core
  double quota_cores = 0;        // that the cgroup's quota pays for; 0: there is none
  bool card = false;             // the model runs on one
  std::string card_bus_id = {};  // of it; empty: not known
};

struct MachinePlan {
  int nodes = 1, cores = 0;     // that may be used
  CpuSet cpus;                  // all of them; the process keeps to these
  bool binds = false;           // any of what follows says more than `cpus`
  CpuSet home;                  // what loads, launches, and what they start
  int home_node = -1;           // of home, and of the card's pinned memory; -1: several, or the only one
  CpuSet engine;                // the engine's thread
  CpuSet io;                    // network and text threads
  std::vector<CpuSet> compute;  // [threads of the team]; on a card none
  std::vector<int>
      interleave;    // nodes over which new pages are spread; empty: pages lie where they are touched
  std::string note;  // why less is done than could be; empty: all is
};

// Errors name the key, and what it may be here.
Result<MachinePlan> plan_machine(const Topology& topology, const MachineWish& wish);

// One or two lines.
std::string describe(const MachinePlan& plan);

// Threads of that name run there; all others where whoever started them ran.
struct ThreadPlace {
  std::string name;
  CpuSet cpus;
};
std::vector<ThreadPlace> thread_places(const MachinePlan& plan);

}  // namespace sluice
