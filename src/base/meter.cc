#include "base/meter.h"

#include "base/check.h"

namespace sluice {

Histogram::Histogram(std::span<const double> bounds) : count_(int(bounds.size())) {
  CHECK(bounds.size() <= kMaxBounds);
  for (size_t i = 0; i < bounds.size(); ++i) {
    CHECK(i == 0 || bounds[i] > bounds[i - 1], "histogram bounds must rise");
    bounds_[i] = bounds[i];
  }
}

void Histogram::observe(double v) {
  int i = 0;
  while (i < count_ && v > bounds_[size_t(i)]) ++i;
  buckets_[size_t(i)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(v, std::memory_order_relaxed);
}

namespace meter {
namespace {

struct Registry {
  std::mutex mutex;
  std::deque<Meter> meters;
  std::deque<Counter> counters;
  std::deque<Gauge> gauges;
  std::deque<Histogram> histograms;
};

Registry& registry() {
  static Registry* r = new Registry;  // never destroyed: meters may be written while the process exits
  return *r;
}

// The meter of this name and labels; made by `make` at first use.
template <typename Make>
Meter& find_or_make(Meter::Kind kind, const std::string& name, const std::string& help,
                    const std::string& labels, Make make) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (Meter& m : r.meters) {
    if (m.name == name && m.labels == labels) {
      CHECK(m.kind == kind, "one name, two kinds of meter");
      return m;
    }
  }
  Meter& m = r.meters.emplace_back(Meter{kind, name, help, labels});
  make(r, m);
  return m;
}

}  // namespace

Counter& counter(const std::string& name, const std::string& help, const std::string& labels, double unit) {
  return *find_or_make(Meter::Kind::counter, name, help, labels, [unit](Registry& r, Meter& m) {
            m.counter = &r.counters.emplace_back();
            m.unit = unit;
          }).counter;
}

Gauge& gauge(const std::string& name, const std::string& help, const std::string& labels) {
  return *find_or_make(Meter::Kind::gauge, name, help, labels, [](Registry& r, Meter& m) {
            m.gauge = &r.gauges.emplace_back();
          }).gauge;
}

Histogram& histogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                     const std::string& labels) {
  return *find_or_make(Meter::Kind::histogram, name, help, labels, [&](Registry& r, Meter& m) {
            m.histogram = &r.histograms.emplace_back(bounds);
          }).histogram;
}

std::vector<Meter> all() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  return {r.meters.begin(), r.meters.end()};
}

const std::array<double, 20> kSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                         0.25,   0.5,     1,      2.5,   5,      10,    25,   50,    100,  250};

}  // namespace meter
}  // namespace sluice
