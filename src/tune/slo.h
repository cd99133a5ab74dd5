// What a configuration must keep: "p95_ms<1200".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tune/run.h"

namespace sluice::tune {

struct Slo {
  std::string
      metric;  // p50_ms, p95_ms, p99_ms (end to end), ttft_p50_ms, ttft_p95_ms, ttft_p99_ms, itl_p50_ms, …
  double limit = 0;
};

// Empty: none. Several are separated by commas.
Result<std::vector<Slo>> parse_slo(const std::string& text);
std::string describe(const std::vector<Slo>& slo);

// What the metric came to; NaN where nothing was completed.
double measured(const Slo& slo, const Run& run, const Figures& figures);

// By how much the worst of them is missed: at most 1: all are kept. Infinite where a request failed or nothing
// is known.
double excess(const std::vector<Slo>& slo, const Run& run, const Figures& figures);

}  // namespace sluice::tune
