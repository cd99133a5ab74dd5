// SIGINT, SIGTERM and SIGHUP as something to wait for. One instance per process, made before other threads
// start.
#pragma once

#include <csignal>

#include "base/clock.h"

namespace sluice::cli {

// A second signal to end within so long after the first is the same wish said twice (a shell and a supervisor
// that both pass it on), and not impatience.
inline constexpr TimeNs kSameWishNs = 500'000'000;
constexpr bool is_impatient(TimeNs first, TimeNs now) { return first != 0 && now - first >= kSameWishNs; }

// The first signal is counted and wakes whoever waits; an impatient one after it ends the process at once, with
// status 128 + signal.
class Signals {
 public:
  // `only_interrupt`: SIGTERM keeps its default, and the count may be reset (chat: Ctrl-C ends an answer, not
  // the program).
  enum class Watch { both, only_interrupt };
  explicit Signals(Watch watch);
  ~Signals();
  Signals(const Signals&) = delete;

  static int count();
  // Whether a SIGHUP has come since the last call. Watched with both alone.
  static bool take_hangup();
  static void reset();
  // Blocks until a signal came or `wake` was called.
  static void wait();
  static void wake();  // from any thread
};

}  // namespace sluice::cli
