// SIGINT, SIGTERM and SIGHUP as something to wait for. One instance per process, made before other threads
// start.
#pragma once

#include <csignal>

namespace sluice::cli {

// The first signal is counted and wakes whoever waits; the second ends the process at once, with status 128 +
// signal.
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
