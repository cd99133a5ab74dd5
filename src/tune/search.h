// The search over numeric settings: coordinate descent on a prediction (the simulator fitted to recorded
// steps), whose best are then measured for real.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/configuration.h"
#include "tune/slo.h"

namespace sluice::tune {

struct Axis {
  std::string key;
  std::vector<std::string> values;  // in order; empty text: the default
};

struct Prediction {
  bool possible = false;  // false: a server would refuse these settings
  double qps = 0;
  double excess = 0;  // of the SLO, as slo.h's; 0: there is none
};

struct Candidate {
  Configuration configuration;
  Prediction prediction;
};

// What is better: whoever keeps the SLO, else is nearer to it, then more requests a second.
bool better(const Prediction& a, const Prediction& b);

// Goes along one axis at a time to its best value, until no axis helps or `most` predictions are spent. Returns
// the configurations that are predicted to be better than `from`, best first, at most `keep`.
std::vector<Candidate> coordinate_descent(const Configuration& from, const std::vector<Axis>& axes,
                                          const std::function<Prediction(const Configuration&)>& predict,
                                          int most, size_t keep);

// Numbers worth trying for a load, whatever the server: admission, step sizes, the target between tokens.
std::vector<Axis> numeric_axes(int concurrency, bool card);

}  // namespace sluice::tune
