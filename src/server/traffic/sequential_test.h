// Whether one mean is above another, asked after every observation without being misled by the asking.
//
// An ordinary test that is looked at again and again finds a difference sooner or later where there is none.
// The mixture sequential probability ratio test (H. Robbins, Annals of Mathematical Statistics 41, 1970; for
// two streams: R. Johari, P. Koomen, L. Pekelis, D. Walsh, Peeking at A/B Tests, KDD 2017) averages the
// likelihood ratio over differences drawn from a normal of deviation tau; with V the variance of the difference
// d seen,
//
//   ratio = sqrt(V / (V + tau^2)) * exp(tau^2 d^2 / (2 V (V + tau^2)))
//
// stays below 1/alpha for ever with probability 1 - alpha where there is no difference. Pure.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice {

// Mean and variance of a stream (B. Welford, Technometrics 4, 1962).
struct Moments {
  int64_t count = 0;
  double mean = 0;
  double squares = 0;  // of deviations, summed

  void add(double value) {
    ++count;
    const double off = value - mean;
    mean += off / double(count);
    squares += off * (value - mean);
  }
  double variance() const { return count > 1 ? squares / double(count - 1) : 0; }
};

inline constexpr int64_t kLeastObservations = 20;  // of each, before the normal approximation is believed

// By how much `b` may be above `a` and still be called no worse, how large differences are expected to be, and
// how often a difference may be found where there is none.
struct WorseThan {
  double margin = 0, tau = 0.1, alpha = 0.01;
};

inline bool is_above(double difference, double variance, const WorseThan& test) {
  const double d = difference - test.margin;
  if (d <= 0 || variance <= 0) return false;
  const double tau2 = test.tau * test.tau, sum = variance + tau2;
  const double log_ratio = 0.5 * std::log(variance / sum) + tau2 * d * d / (2 * variance * sum);
  return log_ratio >= -std::log(test.alpha);
}

inline bool is_above(const Moments& a, const Moments& b, const WorseThan& test) {
  if (a.count < kLeastObservations || b.count < kLeastObservations) return false;
  return is_above(b.mean - a.mean, a.variance() / double(a.count) + b.variance() / double(b.count), test);
}

// The same of shares. One success and one failure are added to each, so that none has a variance of zero
// (A. Agresti, B. Coull, The American Statistician 52, 1998).
struct Share {
  int64_t hits = 0, count = 0;
  void add(bool hit) { ++count, hits += hit; }
  double value() const { return double(hits + 1) / double(count + 2); }
  double variance() const { return value() * (1 - value()) / double(count + 2); }
};

inline bool is_above(const Share& a, const Share& b, const WorseThan& test) {
  if (a.count < kLeastObservations || b.count < kLeastObservations) return false;
  return is_above(b.value() - a.value(), a.variance() + b.variance(), test);
}

}  // namespace sluice
