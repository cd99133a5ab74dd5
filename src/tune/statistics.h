// What repeats say: means with 95 % confidence intervals by Student's t, and the interval of a ratio of two
// means.
#pragma once

#include <cmath>
#include <span>

namespace sluice::tune {

// `low` .. `high` holds the true mean in 95 of 100 such measurements, as far as the samples are independent. Of
// a single sample nothing is known: both are infinite.
struct Estimate {
  double mean = NAN, low = NAN, high = NAN;
  int samples = 0;
};

// NaNs among the samples are left out.
Estimate estimate(std::span<const double> samples);

// after / before, by Student's two-sample test: the noise of both, relative to their means, is taken to be
// alike, so that a side of two samples may borrow from the other. Infinite where both have one sample.
Estimate ratio(std::span<const double> after, std::span<const double> before);

// Two-sided 95 % quantile of Student's t.
double t_quantile(double degrees_of_freedom);

// By linear interpolation between the two nearest ranks; NaN of nothing. `values` are sorted.
double percentile(std::span<const double> values, double q);

}  // namespace sluice::tune
