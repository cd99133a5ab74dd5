// Meters: what the program counts about itself. A writer needs this header only; what reads them lives in
// observe. Meters are made once, at start, and live for the process; writing is a relaxed atomic add, from any
// thread.
//
//   static Counter& tokens = meter::counter("sluice_generated_tokens_total", "Tokens sampled.");
//   tokens.add(n);
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace sluice {

class Counter {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Fixed upper bounds, cumulative only when exported.
class Histogram {
 public:
  static constexpr int kMaxBounds = 24;
  explicit Histogram(std::span<const double> bounds);
  void observe(double v);
  std::span<const double> bounds() const { return {bounds_.data(), size_t(count_)}; }
  uint64_t bucket(int i) const {
    return buckets_[size_t(i)].load(std::memory_order_relaxed);
  }  // i == bounds().size(): above all
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  int count_ = 0;
  std::array<double, kMaxBounds> bounds_{};
  std::array<std::atomic<uint64_t>, kMaxBounds + 1> buckets_{};
  std::atomic<double> sum_{0};
};

struct Meter {
  enum class Kind { counter, gauge, histogram } kind;
  std::string name;  // Prometheus name, unit last ("_seconds", "_bytes", "_total")
  std::string help;
  std::string labels;  // `reason="stop"`: fixed at registration, never client text
  Counter* counter = nullptr;
  Gauge* gauge = nullptr;
  Histogram* histogram = nullptr;
  double unit = 1;  // what one count of a counter is in the unit of its name: 1e-9 for nanoseconds in seconds
};

namespace meter {
// The same name and labels give the same meter.
Counter& counter(const std::string& name, const std::string& help, const std::string& labels = "",
                 double unit = 1);
Gauge& gauge(const std::string& name, const std::string& help, const std::string& labels = "");
Histogram& histogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                     const std::string& labels = "");
// All meters, in order of registration. The pointers stay valid.
std::vector<Meter> all();

// Seconds, for latencies from a microsecond-scale step to minutes.
extern const std::array<double, 20> kSeconds;
}  // namespace meter

}  // namespace sluice
