// How fast blocks come to the pool from host memory and from files, learned from those that came: how many are
// copied in one step, and whether a prefix is had sooner by copying it than by computing it again. Numbers in,
// numbers out; owned by the engine thread.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace sluice {

class TransferRates {
 public:
  void note_host(size_t bytes, TimeNs took) { note(host_, bytes, took); }
  void note_disk(size_t bytes, TimeNs took) { note(disk_, bytes, took); }

  // Bytes a second; 0: nothing has come yet.
  double host() const { return host_; }
  double disk() const { return disk_; }

  // What is copied in one step: about kStepNs of it, so that a step of few rows is not much longer for it.
  size_t step_bytes() const { return size_t((host_ > 0 ? host_ : kFirstGuess) * seconds(kStepNs)); }

  // Until all of it can be read, in ns. What no rate is known of costs nothing: the first tells.
  double restore_ns(size_t host_bytes, size_t disk_bytes) const {
    const auto time = [](size_t bytes, double rate) { return rate > 0 ? double(bytes) / rate * 1e9 : 0; };
    return time(host_bytes + disk_bytes, host_) + time(disk_bytes, disk_);
  }
  // `recompute_ns`: what the tokens would take to be computed; 0: not known.
  bool worth_restoring(size_t host_bytes, size_t disk_bytes, double recompute_ns) const {
    return recompute_ns <= 0 || restore_ns(host_bytes, disk_bytes) < recompute_ns;
  }

  static constexpr TimeNs kStepNs = 4'000'000;
  static constexpr double kFirstGuess = 4e9;

 private:
  // Of small copies the time is mostly that of asking for them.
  static constexpr size_t kTellingBytes = 64 << 10;
  static void note(double& rate, size_t bytes, TimeNs took) {
    if (bytes < kTellingBytes || took <= 0) return;
    const double now = double(bytes) / seconds(took);
    rate = rate > 0 ? 0.8 * rate + 0.2 * now : now;
  }
  double host_ = 0, disk_ = 0;
};

// Room for copies of one step.
constexpr int most_host_moves(size_t slot_bytes) {
  constexpr size_t kMost = 4096, kLeast = 16, kFastest = 128e9;  // bytes a second
  const size_t most = size_t(double(kFastest) * 0.004) / (slot_bytes / 4 + 1);
  return int(std::clamp(most, kLeast, kMost));
}

}  // namespace sluice
