// What this machine can do at most, measured: the limits that benchmark figures are shares of.
#pragma once

#include <string>

namespace sluice::cli {

struct MachineLimits {
  int threads = 0;
  std::string instruction_set;
  double read_bytes_s = 0;  // sequential reads of memory far larger than the caches, all threads together
  double int8_ops_s = 0;    // 8-bit multiply-adds, each counted as two operations, best instruction present
  double f32_ops_s = 0;     // fused multiply-adds in float32, two operations each
};

// Takes about half a second and `threads` cores. The thread team must not be in use meanwhile.
MachineLimits measure_machine(int threads);

// From /proc/cpuinfo; empty where it does not say.
std::string processor_name();

}  // namespace sluice::cli
