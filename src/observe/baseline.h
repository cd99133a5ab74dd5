// Mean and deviation of what came lately. The first kForget values by Welford's running sums (B. P. Welford,
// "Note on a method for calculating corrected sums of squares and products", 1962); from then on each new value
// counts 1/kForget, so that what is long past is forgotten (an exponentially weighted mean and variance).
//
// Any threads: where two add at the same time one of the values may be lost, which no mean of many minds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>

namespace sluice {

class Baseline {
 public:
  static constexpr int kForget = 256;

  Baseline() = default;
  Baseline(const Baseline& o) : count_(o.count()), mean_(o.mean()), variance_(o.variance_.load()) {}

  void add(double x) {
    const int n = std::min(count_.load(std::memory_order_relaxed) + 1, kForget);
    const double mean = mean_.load(std::memory_order_relaxed), step = (x - mean) / n;
    const double variance = variance_.load(std::memory_order_relaxed);
    count_.store(n, std::memory_order_relaxed);
    mean_.store(mean + step, std::memory_order_relaxed);
    variance_.store(variance + ((x - mean) * (x - mean - step) - variance) / n, std::memory_order_relaxed);
  }
  int count() const { return count_.load(std::memory_order_relaxed); }  // kForget at most
  double mean() const { return mean_.load(std::memory_order_relaxed); }
  double deviation() const { return std::sqrt(std::max(0.0, variance_.load(std::memory_order_relaxed))); }

 private:
  std::atomic<int> count_{0};
  std::atomic<double> mean_{0}, variance_{0};
};

}  // namespace sluice
