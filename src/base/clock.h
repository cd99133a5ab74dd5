// Time as a value that is passed in, so that sched and tests can drive it by hand.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice {

// Nanoseconds of a monotonic clock; only differences mean anything.
using TimeNs = int64_t;

// How far tests have moved the clock (Fault::clock_jump).
inline std::atomic<TimeNs> clock_offset_ns{0};

inline TimeNs now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
             .count() +
         clock_offset_ns.load(std::memory_order_relaxed);
}

// Nanoseconds since 1970, which others may set; and of CPU time that this thread has had (a system call).
inline TimeNs unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}
inline TimeNs thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return TimeNs(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline double ms(TimeNs t) { return double(t) * 1e-6; }
inline double seconds(TimeNs t) { return double(t) * 1e-9; }

}  // namespace sluice
