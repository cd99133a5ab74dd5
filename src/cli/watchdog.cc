#include "cli/watchdog.h"

#include "base/check.h"
#include "base/log.h"

namespace sluice::cli {

Watchdog::Watchdog(const Engine& engine, int limit_s, std::function<void()> on_stuck) {
  if (limit_s == 0) return;
  thread_ =
      std::thread([this, &engine, limit = TimeNs(limit_s) * 1'000'000'000, on_stuck = std::move(on_stuck)] {
        std::unique_lock lock(mutex_);
        while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return over_; })) {
          const TimeNs since = engine.status().busy_since;
          if (since == 0 || now_ns() - since <= limit) continue;
          LOG(error, "watchdog: the engine has been at one step for {:.1f} s", seconds(now_ns() - since));
          CHECK(on_stuck != nullptr, "the engine's step ends (engine.watchdog_s)");
          return on_stuck();
        }
      });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace sluice::cli
