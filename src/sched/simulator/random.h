// Random numbers that are the same bytes on every machine: the generator is specified bit by bit, and logarithm
// and exponential are computed here with the four operations alone, since those of C libraries differ in their
// last bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace sluice {

// ln(x), x > 0 and finite: the atanh series of the fraction, which is within 1/sqrt(2) .. sqrt(2).
inline double exact_log(double x) {
  constexpr double kLn2 = 0.69314718055994530942, kRoot = 0.70710678118654752440;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < kRoot) m *= 2, --exponent;
  const double t = (m - 1) / (m + 1), square = t * t;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2 * t * sum + exponent * kLn2;
}

// e^x, |x| <= 700.
inline double exact_exp(double x) {
  constexpr double kLn2 = 0.69314718055994530942;
  const double n = std::floor(x / kLn2 + 0.5);
  const double rest = x - n * kLn2;
  double sum = 1;
  for (int k = 18; k >= 1; --k) sum = 1 + sum * rest / k;
  return std::ldexp(sum, int(n));
}

class Random {
 public:
  // `stream`: numbers of one seed for different purposes are independent.
  Random(uint64_t seed, uint64_t stream)
      : bits_(seed * 0x9e3779b97f4a7c15u + stream * 0xbf58476d1ce4e5b9u + 1) {}

  uint64_t next() { return bits_(); }
  // In (0, 1).
  double uniform() { return (double(bits_() >> 11) + 0.5) * 0x1p-53; }
  int64_t between(int64_t low, int64_t high) { return low + int64_t(bits_() % uint64_t(high - low + 1)); }
  bool chance(double p) { return uniform() < p; }
  double exponential(double mean) { return -mean * exact_log(uniform()); }
  // Mean 0, deviation 1, by Marsaglia's polar method (its second value is thrown away).
  double normal() {
    for (;;) {
      const double a = 2 * uniform() - 1, b = 2 * uniform() - 1, s = a * a + b * b;
      if (s > 0 && s < 1) return a * std::sqrt(-2 * exact_log(s) / s);
    }
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace sluice
