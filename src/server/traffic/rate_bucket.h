// How much of something may pass in a minute, a minute's worth at once at most. Lock-free; any thread.
//
// The generic cell rate algorithm (ITU-T recommendation I.371, annex A): in place of a level that somebody must
// refill, one point in time, `paid_until_`, up to which the flow has paid for what passed. Each unit moves it
// by the time in which one unit may pass; it may not be ahead of now by more than the window. So what is left,
// and when there will be enough, follow from one number, and a new rate needs no conversion of the old level.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace sluice {

class RateBucket {
 public:
  static constexpr TimeNs kWindow = 60'000'000'000;

  // 0: no bound.
  void set_rate(double per_minute) { per_minute_.store(per_minute, std::memory_order_relaxed); }
  double per_minute() const { return per_minute_.load(std::memory_order_relaxed); }
  bool limits() const { return per_minute() > 0; }

  // 0: `amount` was taken. Else nothing was, and it will be there in so many nanoseconds if nobody else takes
  // it. More than a minute's worth is taken from a full bucket, which is then in debt: else it could never
  // pass.
  TimeNs take(double amount, TimeNs now) {
    const double rate = per_minute();
    if (rate <= 0) return 0;
    const TimeNs cost = cost_of(amount, rate);
    TimeNs paid = paid_until_.load(std::memory_order_relaxed);
    for (;;) {
      const TimeNs from = std::max(paid, now);
      const TimeNs wait = from + std::min(cost, kWindow) - (now + kWindow);
      if (wait > 0) return wait;
      if (paid_until_.compare_exchange_weak(paid, from + cost, std::memory_order_relaxed)) return 0;
    }
  }

  // What was taken and then not needed; negative: it took more.
  void give_back(double amount) {
    if (const double rate = per_minute(); rate > 0)
      paid_until_.fetch_sub(cost_of(amount, rate), std::memory_order_relaxed);
  }

  // From 0 to per_minute().
  double remaining(TimeNs now) const {
    return per_minute() * double(kWindow - std::min(full_in(now), kWindow)) / double(kWindow);
  }
  // Until all of per_minute() is there.
  TimeNs full_in(TimeNs now) const {
    return std::max<TimeNs>(0, paid_until_.load(std::memory_order_relaxed) - now);
  }

 private:
  static TimeNs cost_of(double amount, double rate) { return TimeNs(amount / rate * double(kWindow)); }

  std::atomic<double> per_minute_{0};
  std::atomic<TimeNs> paid_until_{0};
};

}  // namespace sluice
