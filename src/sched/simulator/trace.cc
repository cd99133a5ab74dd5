#include "sched/simulator/trace.h"

#include <algorithm>

#include "base/check.h"
#include "sched/simulator/random.h"

namespace sluice {
namespace {

int draw(const LengthLaw& law, Random& random) {
  switch (law.kind) {
    case LengthLaw::Kind::fixed:
      return law.low;
    case LengthLaw::Kind::uniform:
      return int(random.between(law.low, law.high));
    case LengthLaw::Kind::lognormal: {
      const double exponent = std::clamp(law.sigma * random.normal(), -50.0, 50.0);
      return int(std::clamp(law.median * exact_exp(exponent), double(law.low), double(law.high)));
    }
  }
  return 1;
}

// When the next one comes, in seconds.
class ArrivalClock {
 public:
  ArrivalClock(const Arrivals& arrivals, Random& random) : arrivals_(arrivals), random_(random) {
    if (arrivals.kind == Arrivals::Kind::bursty) switch_at_ = random.exponential(arrivals.off_s);
  }
  double next() {
    for (;;) {
      const double rate = burst_ ? arrivals_.burst_rate : arrivals_.rate;
      // The process forgets: what was drawn in one state is drawn anew after the switch.
      const double at = rate > 0 ? at_ + random_.exponential(1 / rate) : switch_at_;
      if (arrivals_.kind != Arrivals::Kind::bursty || (rate > 0 && at < switch_at_)) return at_ = at;
      at_ = switch_at_;
      burst_ = !burst_;
      switch_at_ = at_ + random_.exponential(burst_ ? arrivals_.on_s : arrivals_.off_s);
    }
  }

 private:
  const Arrivals& arrivals_;
  Random& random_;
  double at_ = 0, switch_at_ = 0;
  bool burst_ = false;
};

Lane draw_lane(const std::array<double, kLanes>& shares, Random& random) {
  double left = (shares[0] + shares[1] + shares[2]) * random.uniform();
  for (int lane = 0; lane + 1 < kLanes; ++lane) {
    if (left < shares[size_t(lane)]) return Lane(lane);
    left -= shares[size_t(lane)];
  }
  return Lane(kLanes - 1);
}

}  // namespace

Trace make_trace(const TraceWish& wish) {
  const bool closed = wish.arrivals.kind == Arrivals::Kind::closed;
  CHECK(wish.requests > 0 || (wish.duration_ns > 0 && !closed), "a trace ends");
  // One stream a purpose: other lengths do not move the arrivals.
  Random arrivals(wish.seed, 0), inputs(wish.seed, 1), outputs(wish.seed, 2), lanes(wish.seed, 3),
      tenants(wish.seed, 4);
  ArrivalClock clock(wish.arrivals, arrivals);
  Trace trace;
  trace.concurrency = closed ? wish.arrivals.concurrency : 0;
  while (wish.requests == 0 || trace.requests.size() < size_t(wish.requests)) {
    TracedRequest r;
    if (!closed) r.at = TimeNs(clock.next() * 1e9);
    if (wish.duration_ns > 0 && r.at >= wish.duration_ns) break;
    r.input = draw(wish.input, inputs);
    r.output = draw(wish.output, outputs);
    r.lane = draw_lane(wish.lanes, lanes);
    r.tenant = wish.tenants > 1 ? uint32_t(tenants.between(1, wish.tenants)) : 0;
    r.shared_prefix = std::min(wish.shared_prefix, r.input);
    trace.requests.push_back(r);
  }
  return trace;
}

}  // namespace sluice
