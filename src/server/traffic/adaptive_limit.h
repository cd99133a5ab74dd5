// How many requests may wait for their first token, by what was measured. Pure; time is passed in.
//
// The unit is deliberate. A generated answer takes seconds however idle the server is, so neither the time of
// whole answers nor their number at once says anything of overload: 200 ms would never be met. What overload
// makes longer is the time to the first token, and what is refused in time is what would only wait.
//
// rule      max(min, floor(qps_share * qps) - max(0, (p95_ms - target_ms) / ms_per_place)), with qps the first
//           tokens in a second and p95_ms the time to them. By Little's law requests that wait are arrivals
//           times their wait: 0.8 * qps of them are what a mean wait of 0.8 s amounts to.
// gradient  Follows the ratio of the usual latency to that of now, as TCP Vegas (Brakmo, O'Malley, Peterson:
//           SIGCOMM 1994) does with round trips, in the form that Netflix published for servers
//           (github.com/Netflix/concurrency-limits, Gradient2Limit): the limit is multiplied by the ratio, and
//           room for a small queue is added. Differs in one thing: the usual latency falls quickly and rises
//           slowly, since an overload that lasts would else become what is usual.
#pragma once

#include <algorithm>
#include <cmath>

#include "server/traffic/latency_window.h"
#include "server/traffic/traffic_settings.h"

namespace sluice {

inline int limit_by_rule(const LimitSettings& settings, const LatencyWindow::Reading& seen) {
  const double too_slow =
      std::max(0.0, (seen.p95_ms - settings.target_ms) / double(std::max(1, settings.ms_per_place)));
  const double places = std::floor(settings.qps_share * seen.per_second) - too_slow;
  return std::clamp(int(std::clamp(std::floor(places), 0.0, 1e9)), settings.min,
                    std::max(settings.min, settings.max));
}

class GradientLimit {
 public:
  static constexpr double kQueue = 4;  // places added to each estimate
  static constexpr double kSmoothing = 0.2;
  static constexpr double kFall = 0.2;  // of the way down to a lower latency, in one update
  static constexpr double kRise = 1 / 600.0;

  // Once a second or so. `waiting`: requests without a first token now.
  int update(const LimitSettings& settings, double latency_ms, int waiting) {
    const double most = std::max(settings.min, settings.max);
    if (limit_ == 0) limit_ = settings.min;
    limit_ = std::clamp(limit_, double(settings.min), most);
    if (latency_ms <= 0) return int(limit_);
    if (usual_ms_ == 0) usual_ms_ = latency_ms;
    usual_ms_ += (latency_ms < usual_ms_ ? kFall : kRise) * (latency_ms - usual_ms_);
    // Half empty: latency says nothing of whether more would fit.
    if (latency_ms <= settings.tolerance * usual_ms_ && waiting < limit_ / 2) return int(limit_);
    const double gradient = std::clamp(settings.tolerance * usual_ms_ / latency_ms, 0.5, 1.0);
    const double wanted = limit_ * gradient + kQueue;
    limit_ = std::clamp(limit_ + kSmoothing * (wanted - limit_), double(settings.min), most);
    return int(limit_);
  }

  double usual_ms() const { return usual_ms_; }

 private:
  double limit_ = 0;
  double usual_ms_ = 0;
};

// How much of the configured rates can be kept: lowered at once to what is delivered of them while the server
// is slow, raised by a twentieth a second when it is not. From 0.1 to 1.
inline double calibrated(double share, double delivered, bool slow, double elapsed_s) {
  if (!slow) return std::min(1.0, share * std::pow(1.05, elapsed_s));
  return std::clamp(delivered, 0.1, 1.0);
}

}  // namespace sluice
