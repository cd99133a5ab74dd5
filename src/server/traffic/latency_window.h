// How many, and how slow, in the last seconds: counts by latency in slices of the window, of which the oldest
// falls out as time goes on. Not synchronized; its owner locks.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace sluice {

class LatencyWindow {
 public:
  struct Reading {
    int64_t count = 0;
    double per_second = 0;
    double mean_ms = 0, p95_ms = 0;  // p95: the upper end of its bucket, 9 % wide; 0 without a count
  };

  explicit LatencyWindow(TimeNs span) : slice_(std::max<TimeNs>(1, span / kSlices)) {}

  void add(TimeNs now, TimeNs latency) {
    if (first_ == 0) first_ = now;
    Slice& slice = slices_[size_t(now / slice_) % kSlices];
    if (slice.number > now / slice_) return;  // told so late that its slice has gone
    if (slice.number < now / slice_) slice = Slice{now / slice_, 0, 0, {}};
    const double latency_ms = std::max(0.0, ms(latency));
    slice.count += 1;
    slice.sum_ms += latency_ms;
    slice.buckets[bucket_of(latency_ms)] += 1;
  }

  Reading read(TimeNs now) const {
    Reading reading;
    std::array<int64_t, kBuckets> all{};
    double sum_ms = 0;
    for (const Slice& slice : slices_) {
      if (slice.number <= now / slice_ - kSlices || slice.number > now / slice_) continue;
      reading.count += slice.count;
      sum_ms += slice.sum_ms;
      for (size_t i = 0; i < kBuckets; ++i) all[i] += slice.buckets[i];
    }
    if (reading.count == 0) return reading;
    // The newest slice is under way, and at first there are fewer than all.
    const TimeNs whole = slice_ * (kSlices - 1) + now % slice_;
    const TimeNs seen = std::max(std::min(whole, now - first_), slice_);
    reading.per_second = double(reading.count) / seconds(seen);
    reading.mean_ms = sum_ms / double(reading.count);
    int64_t below = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      below += all[i];
      if (below * 100 >= reading.count * 95) {
        reading.p95_ms = std::exp2(double(i + 1) / kPerOctave);
        break;
      }
    }
    return reading;
  }

 private:
  static constexpr int64_t kSlices = 10;
  static constexpr size_t kBuckets = 176;  // from 1 ms to an hour
  static constexpr double kPerOctave = 8;

  struct Slice {
    int64_t number = -kSlices;
    int64_t count = 0;
    double sum_ms = 0;
    std::array<uint32_t, kBuckets> buckets{};
  };

  static size_t bucket_of(double latency_ms) {
    if (latency_ms <= 1) return 0;
    return std::min(kBuckets - 1, size_t(std::log2(latency_ms) * kPerOctave));
  }

  TimeNs slice_;
  TimeNs first_ = 0;
  std::array<Slice, size_t(kSlices)> slices_{};
};

}  // namespace sluice
