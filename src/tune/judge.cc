#include "tune/judge.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice::tune {
namespace {

// Nearer than this, two misses of an SLO are the same.
constexpr double kSameMiss = 1.05;
// What is better by this much in speed and tail is kept whatever the noise: a wrong guess costs little, and a
// step that was dropped for nothing is missing from all that are measured after it.
constexpr double kLikely = 1.1;

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

// A load of a few requests has one window, and no noise to be seen.
std::string interval(const Estimate& e) {
  return std::isfinite(e.low) && std::isfinite(e.high)
             ? fmt::format("{} to {}", percent(e.low), percent(e.high))
             : "one window: its noise is not known";
}

bool faster_tail(const Figures& before, const Figures& after) {
  return after.p95_ms.mean < before.p95_ms.mean &&
         (after.p95_ms.high < before.p95_ms.low || (before.p95_at_least && !after.p95_at_least));
}

// The interval as wide as the windows say, around what all of them together came to.
Estimate gain(const Estimate& after, const Estimate& before, const Estimate& by_windows) {
  const double r = after.mean / before.mean, shift = r - by_windows.mean;
  return {r, by_windows.low + shift, by_windows.high + shift, by_windows.samples};
}

}  // namespace

Verdict judge(const Measured& before, const Measured& after, const std::vector<Slo>& slo) {
  const Figures &b = before.figures, &a = after.figures;
  Verdict v;
  v.qps_gain = gain(a.qps, b.qps, ratio(a.qps_samples, b.qps_samples));
  v.tok_s_gain = gain(a.tok_s, b.tok_s, ratio(a.tok_s_samples, b.tok_s_samples));
  v.p95_gain = a.p95_ms.mean / b.p95_ms.mean;
  if (!after.run.failure.empty()) return v.reason = after.run.failure, v;
  if (a.failed > 0)
    return v.reason = fmt::format("{} of {} requests failed", a.failed, a.failed + a.completed), v;
  if (!is_told(a))
    return v.reason = fmt::format(
               "too few requests ended in {:.1f} s of load to judge it: give a longer "
               "--budget, fewer requests at once or shorter ones",
               after.run.load_s),
           v;
  if (!is_told(b)) return v.keep = true, v.reason = "too few requests ended before to compare with", v;
  const Estimate& gained = v.tok_s_gain;
  const std::string change = fmt::format("{} tokens/s ({})", percent(gained.mean), interval(gained));
  if (!slo.empty()) {
    const double was = excess(slo, before.run, b), is = excess(slo, after.run, a);
    const std::string how_far =
        fmt::format("the SLO: {:.2f} times its bound, before {:.2f}; {}", is, was, change);
    if (is > 1 && is > was * kSameMiss) return v.reason = "further from " + how_far, v;
    if (was > 1 && is * kSameMiss < was) return v.keep = true, v.reason = "nearer to " + how_far, v;
  }
  if (gained.low > 1) return v.keep = true, v.reason = change, v;
  if (gained.high < 1) return v.reason = "slower: " + change, v;
  if (faster_tail(b, a)) {
    v.keep = true;
    v.reason = fmt::format("p95 {}; {}, within the noise", percent(v.p95_gain), change);
    return v;
  }
  const bool known = std::isfinite(gained.low) && !a.p95_at_least;
  if (known && gained.mean > kLikely && v.p95_gain * kLikely < 1) {
    v.keep = true;
    v.reason = fmt::format("likely better: {}, p95 {}, within the noise", change, percent(v.p95_gain));
    return v;
  }
  v.reason = "within the noise: " + change;
  return v;
}

}  // namespace sluice::tune
