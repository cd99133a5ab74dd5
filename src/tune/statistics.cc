#include "tune/statistics.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

namespace sluice::tune {
namespace {

struct Moments {
  int count = 0;
  double mean = 0, mean_variance = 0;  // of the mean
};

Moments moments(std::span<const double> samples) {
  Moments m;
  for (const double v : samples)
    if (std::isfinite(v)) m.mean += v, ++m.count;
  if (m.count == 0) return m;
  m.mean /= m.count;
  for (const double v : samples)
    if (std::isfinite(v)) m.mean_variance += (v - m.mean) * (v - m.mean);
  m.mean_variance = m.count > 1 ? m.mean_variance / (m.count - 1) / m.count : 0;
  return m;
}

constexpr double kUnknown = std::numeric_limits<double>::infinity();

}  // namespace

double t_quantile(double degrees_of_freedom) {
  static constexpr double kQuantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                          2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
  const size_t row = size_t(std::max(1.0, degrees_of_freedom)) - 1;
  if (row < std::size(kQuantiles)) return kQuantiles[row];
  // Within 0.1 % beyond the table.
  return 1.960 + 2.372 / degrees_of_freedom + 2.82 / (degrees_of_freedom * degrees_of_freedom);
}

Estimate estimate(std::span<const double> samples) {
  const Moments m = moments(samples);
  if (m.count == 0) return {};
  if (m.count == 1) return {m.mean, -kUnknown, kUnknown, 1};
  const double half = t_quantile(m.count - 1) * std::sqrt(m.mean_variance);
  return {m.mean, m.mean - half, m.mean + half, m.count};
}

Estimate ratio(std::span<const double> after, std::span<const double> before) {
  const Moments a = moments(after), b = moments(before);
  if (a.count == 0 || b.count == 0 || b.mean == 0) return {};
  const double r = a.mean / b.mean;
  const int samples = std::min(a.count, b.count), freedom = a.count + b.count - 2;
  if (freedom < 1) return {r, -kUnknown, kUnknown, samples};
  const auto squares = [](const Moments& m) {
    return (m.count - 1) * m.mean_variance * m.count / (m.mean * m.mean);
  };
  const double variance = (squares(a) + squares(b)) / freedom * (1.0 / a.count + 1.0 / b.count);
  const double half = t_quantile(freedom) * r * std::sqrt(variance);
  return {r, r - half, r + half, samples};
}

double percentile(std::span<const double> values, double q) {
  if (values.empty()) return NAN;
  const double rank = q * double(values.size() - 1);
  const size_t below = size_t(rank), above = std::min(below + 1, values.size() - 1);
  return values[below] + (rank - double(below)) * (values[above] - values[below]);
}

}  // namespace sluice::tune
