// Stops asking somebody who keeps failing, and asks now and then whether that is over.
//
//   closed     all pass. So many failures within the window open it.
//   open       nobody passes, for open_s.
//   half-open  one request passes as a probe, and after it one each probe_s, until one succeeds: closed.
//
// The pattern is that of M. Nygard, Release It! (2007). What counts as a failure is its caller's to say;
// requests that passed before it opened say nothing of whether the fault is over, so only probes close it.
// Lock-free while closed and well; any thread; time is passed in.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace sluice {

struct BreakerSettings {
  static constexpr int kMostFailures = 64;
  int window_s = 60, failures = 5, open_s = 30, probe_s = 10;  // failures 0: never opens
};
inline constexpr BreakerSettings kPatientBreaker = {60, 5, 30, 10};
inline constexpr BreakerSettings kQuickBreaker = {30, 3, 15, 5};
inline constexpr BreakerSettings kNoBreaker = {60, 0, 30, 10};

class CircuitBreaker {
 public:
  enum class State : uint8_t { closed, open, half_open };
  enum class Pass : uint8_t { refused, ordinary, probe };

  // One caller at a time.
  void configure(const BreakerSettings& settings) {
    std::lock_guard lock(mutex_);
    settings_ = settings;
    settings_.failures = std::min(settings_.failures, BreakerSettings::kMostFailures);
    if (settings_.failures == 0) close();
  }

  // Closed, and nothing is known.
  void start_over() {
    std::lock_guard lock(mutex_);
    close();
  }

  Pass enter(TimeNs now) {
    if (state_.load(std::memory_order_acquire) == State::closed) return Pass::ordinary;
    std::lock_guard lock(mutex_);
    if (state_.load(std::memory_order_relaxed) == State::closed) return Pass::ordinary;
    if (probing_ || now < next_probe_) return Pass::refused;
    state_.store(State::half_open, std::memory_order_release);
    probing_ = true;
    next_probe_ = now + settings_.probe_s * kSecond;
    return Pass::probe;
  }

  // How a request that had passed ended.
  void succeeded(Pass pass) {
    if (pass != Pass::probe) return;
    std::lock_guard lock(mutex_);
    close();
  }
  // True: this opened it.
  bool failed(Pass pass, TimeNs now) {
    std::lock_guard lock(mutex_);
    if (pass == Pass::probe) {
      probing_ = false;
      next_probe_ = now + settings_.probe_s * kSecond;
      return false;
    }
    if (settings_.failures == 0 || state_.load(std::memory_order_relaxed) != State::closed) return false;
    failures_[count_ % failures_.size()] = now;
    ++count_;
    const auto needed = uint64_t(settings_.failures);
    if (count_ < needed) return false;
    if (now - failures_[(count_ - needed) % failures_.size()] > settings_.window_s * kSecond) return false;
    next_probe_ = now + settings_.open_s * kSecond;
    state_.store(State::open, std::memory_order_release);
    return true;
  }
  // Its client left: it says nothing, and another may probe in its place.
  void abandoned(Pass pass) {
    if (pass != Pass::probe) return;
    std::lock_guard lock(mutex_);
    if (probing_) next_probe_ = 0;
    probing_ = false;
  }

  State state() const { return state_.load(std::memory_order_acquire); }
  // Until somebody may pass; 0: now.
  TimeNs opens_in(TimeNs now) const {
    if (state() == State::closed) return 0;
    std::lock_guard lock(mutex_);
    return std::max<TimeNs>(0, next_probe_ - now);
  }

 private:
  static constexpr TimeNs kSecond = 1'000'000'000;

  void close() {  // needs mutex_
    probing_ = false;
    count_ = 0;
    state_.store(State::closed, std::memory_order_release);
  }

  std::atomic<State> state_{State::closed};
  mutable std::mutex mutex_;
  BreakerSettings settings_;                                       // guarded by mutex_
  std::array<TimeNs, BreakerSettings::kMostFailures> failures_{};  // ring of times; guarded by mutex_
  uint64_t count_ = 0;                                             // of failures; guarded by mutex_
  TimeNs next_probe_ = 0;                                          // guarded by mutex_
  bool probing_ = false;                                           // guarded by mutex_
};

}  // namespace sluice
