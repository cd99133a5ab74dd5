// Which requests a canary gets, and whether it goes on getting them.
//
// Its share grows in steps; each step ends when it has answered so many requests and is not worse. It is
// compared with the stable pool all the time (sequential_test.h), by errors, anomalies, time to first token and
// pace; once it is worse in one of them it is rolled back, and gets nothing by weight until it is configured
// anew. Each step is compared by itself: most of what the canary sees is of the last ones, most of what the
// stable pool sees of all of them, so that over all together a day that grows busier would look like a canary
// that is slow (Simpson's paradox). Any thread; the lock is held for an addition.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "server/traffic/sequential_test.h"
#include "server/traffic/traffic_settings.h"

namespace sluice {

enum class Pool : uint8_t { stable, canary };
constexpr const char* pool_name(Pool pool) { return pool == Pool::stable ? "stable" : "canary"; }

// How a request ended, as far as a comparison goes.
struct Outcome {
  bool failed = false;     // by the server's fault
  bool anomalous = false;  // answered, with nothing in it
  double first_token_ms = 0;
  double tokens_per_second = 0;  // 0: too few to tell
};

class Canary {
 public:
  // What headers say: always, never, or by weight.
  enum class Wish : uint8_t { by_weight, canary, never, always };

  Canary();
  // Starts over at the first step. `present`: there is one to ask. `times`: how long answers take is compared
  // too.
  void configure(const CanarySettings& settings, bool present = true, bool times = true);
  // `sticky`: a hash; equal ones go the same way while the share does not shrink.
  Pool choose(Wish wish, uint64_t sticky) const;
  // Each true needs a `leave`. False: it has as many as it may.
  bool enter();
  void leave() { in_flight_.fetch_sub(1, std::memory_order_relaxed); }
  void ended(Pool pool, const Outcome& outcome);

  bool rolled_back() const { return rolled_back_.load(std::memory_order_relaxed); }
  double percent() const { return percent_.load(std::memory_order_relaxed); }
  // What it was worse in; empty: it was not.
  std::string verdict() const;

 private:
  struct Seen {
    Share failed, anomalous;
    Moments log_first_token, log_pace;
  };
  const char* worse_in() const;  // needs mutex_; null: in nothing

  std::atomic<int> in_flight_{0}, most_in_flight_{0};
  std::atomic<double> percent_{0};
  std::atomic<bool> rolled_back_{false};
  mutable std::mutex mutex_;
  CanarySettings settings_;    // guarded by mutex_
  std::vector<double> steps_;  // percent; guarded by mutex_
  bool times_ = true;          // guarded by mutex_
  size_t step_ = 0;            // guarded by mutex_
  int answered_ = 0;           // by the canary in this step; guarded by mutex_
  Seen stable_, canary_;       // guarded by mutex_
  const char* verdict_ = "";   // guarded by mutex_
};

}  // namespace sluice
