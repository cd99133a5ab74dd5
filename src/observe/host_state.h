// What the kernel says of this process and its machine, from /proc, /sys and the cgroup: counters that only
// grow, and how many cores there are to use. Reading takes about a tenth of a millisecond a thread; nothing is
// kept open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// A thread's CPU accounts (/proc/self/task/N/schedstat).
struct ThreadTimes {
  std::string name;     // as the thread named itself
  double ran_s = 0;     // on a core
  double waited_s = 0;  // ready to run, while others had the cores
  uint64_t turns = 0;   // times on a core
};

struct HostState {
  std::vector<ThreadTimes> threads;
  double cpu_s = 0;           // user and system time of the process
  double throttled_s = 0;     // the cgroup's quota held its threads back for so long
  uint64_t major_faults = 0;  // pages that came from a disk
  double usable_cpus = 0;     // by affinity and quota; 0: not known
  double compute_cores =
      0;            // physical ones that the compute threads may use, no more than the quota; 0: not known
  int nodes = 1;    // NUMA nodes with memory
  double load = 0;  // runnable threads of the whole machine, mean of the last minute
  // Of this process's resident pages, the share on another node than the one that its compute threads run on;
  // only where there are several nodes.
  double remote_share = 0;
};

HostState read_host_state();

}  // namespace sluice
