// Where the time of many requests went. Pure.
#pragma once

#include <span>

#include "observe/request_log.h"

namespace sluice {

struct Attribution {
  int requests = 0;
  TimeNs total = 0;  // wall time, summed
  SpanTimes spans;   // add up to it

  double share(Span span) const { return total > 0 ? double(spans[span]) / double(total) : 0; }
  double mean_ms() const { return requests > 0 ? ms(total) / requests : 0; }
  double mean_ms(Span span) const { return requests > 0 ? ms(spans[span]) / requests : 0; }
};

struct WindowAttribution {
  Attribution all;
  Attribution slowest;  // the slowest twentieth, at least one: what p95 is made of
};

// Of those that finished at `from` or later.
WindowAttribution attribution_of(std::span<const RequestLog::Kept> requests, TimeNs from);

}  // namespace sluice
