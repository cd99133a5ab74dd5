// How gains depend on the order of the steps: what each session in a folder gave, kept beside its samples.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tune/session.h"

namespace sluice::tune {

struct OrderedGains {
  struct Gain {
    std::string step;
    bool kept = false;
    double ratio = 0;  // output tokens a second, after / before the step
  };
  std::vector<std::string> order;
  std::vector<Gain> gains;  // of the steps that were measured, in this order
  double total = 0;         // at the end / at the start
};

OrderedGains gains_of(const std::vector<std::string>& order, const Session& session);

// Those in a file, of each order the newest, with `now` in its place or at the end; written back. A line that
// cannot be read is left out.
Result<std::vector<OrderedGains>> remember_gains(const std::string& path, const OrderedGains& now);

}  // namespace sluice::tune
