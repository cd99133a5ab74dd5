// Time as a value that is passed in, so that sched and tests can drive it by hand.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

// Nanoseconds of a monotonic clock; only differences mean anything.
using TimeNs = int64_t;

inline TimeNs now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double ms(TimeNs t) { return double(t) * 1e-6; }
inline double seconds(TimeNs t) { return double(t) * 1e-9; }

}  // namespace sluice
