// Tells of an engine that hangs: a thread that looks, once a second, how long the engine's present turn or step
// has taken.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace sluice::cli {

class Watchdog {
 public:
  // Over the limit `on_stuck` is called, once, in the watchdog's thread. Null: a CHECK fails, which prints the
  // last steps and the one under way. `limit_s` 0: it does not look. The engine outlives it.
  Watchdog(const Engine& engine, int limit_s, std::function<void()> on_stuck = nullptr);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::cli
