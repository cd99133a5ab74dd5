// Where the time of many requests went. Pure.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "engine/step_record.h"
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

// The same in the few parts that tell what to do about it. What threads waited for a core is no span: it is
// taken off prefill and decode by the share of the steps' time in which their threads were off the processor.
inline constexpr int kAttributionParts = 7;
inline constexpr std::array<std::string_view, kAttributionParts> kAttributionPartNames = {
    "door", "queue", "prefill", "decode", "cpu_scheduling", "preemption", "write"};
std::array<double, kAttributionParts> parts_of(const Attribution& a,
                                               double off_cpu_share);  // ns, sum to the total
double off_cpu_share(std::span<const StepRecord> steps);

struct WindowAttribution {
  Attribution all;
  Attribution slowest;  // the slowest twentieth, at least one: what p95 is made of
};

// Of those that finished at `from` or later.
WindowAttribution attribution_of(std::span<const RequestLog::Kept> requests, TimeNs from);

}  // namespace sluice
