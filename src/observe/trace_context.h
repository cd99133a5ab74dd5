// Where a request stands in a distributed trace: W3C Trace Context (level 1) in and out, and the sampling
// decision at the head. Pure but for the random ids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/log_scope.h"

namespace sluice {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace_id{};
  SpanId span_id{};      // of the span that this server opens for the request
  SpanId parent_id{};    // the caller's; all zero: the trace begins here
  std::string state;     // tracestate as it came, passed on
  bool sampled = false;  // by the parent, or by ratio where there is none

  bool has_parent() const { return parent_id != SpanId{}; }
  explicit operator bool() const { return trace_id != TraceId{}; }  // false: the request has no trace
};

// A caller's header: trace_id, parent_id and sampled are filled. Nothing where it is malformed, or of version
// ff; of a later version than 00 the known part counts, as the standard has it.
std::optional<TraceContext> parse_traceparent(std::string_view header);
// "00-<trace>-<our span>-<flags>".
std::string traceparent_of(const TraceContext& context);
// What of a tracestate header may be passed on: visible ASCII and blanks, at most 512 bytes; else empty.
std::string clean_tracestate(std::string_view header);

// By the trace's id alone, so that every service of one ratio decides alike: its low 56 bits, which are random,
// against the ratio.
bool is_sampled(const TraceId& id, double ratio);

// A new span in the caller's trace, which then decides on sampling, or in a trace of its own. Any thread.
TraceContext begin_trace(std::string_view traceparent, std::string_view tracestate, double ratio);

std::string hex(const TraceId& id);
std::string hex(const SpanId& id);

// For log lines about the request.
LogIds log_ids(const TraceContext& context, std::string_view request_id);

}  // namespace sluice
