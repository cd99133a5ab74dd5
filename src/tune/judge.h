// Whether a change is kept: what the intervals of two measurements allow to say.
#pragma once

#include <string>
#include <vector>

#include "tune/slo.h"

namespace sluice::tune {

struct Measured {
  const Run& run;
  const Figures& figures;
};

struct Verdict {
  bool keep = false;
  std::string reason;             // one clause
  Estimate qps_gain, tok_s_gain;  // after / before
  double p95_gain = NAN;
};

// Kept is, where both meet the SLO (or both miss it by as much, or there is none): more tokens a second, the
// interval of the ratio wholly above 1; or about as many (not significantly fewer) with a p95 that is lower by
// more than both intervals; or a tenth more of both, whatever the noise. Else whoever misses the SLO by less
// wins. A change under which requests fail is not kept. Tokens and not requests, since requests that began
// together end together, and a count of them depends on where the measurement ends.
Verdict judge(const Measured& before, const Measured& after, const std::vector<Slo>& slo);

}  // namespace sluice::tune
