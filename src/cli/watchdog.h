// Ends a process whose engine hangs: a thread that looks, once a second, how long the engine's present turn or
// step has taken. Over the limit it fails a CHECK, which prints the last steps and the one under way.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace sluice::cli {

class Watchdog {
 public:
  // `limit_s` 0: it does not look. The engine outlives it.
  Watchdog(const Engine& engine, int limit_s);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::cli
