// Whom a thread's log lines are about: while a scope lives, lines of its thread carry its ids. As JSON they are
// the members request_id, trace_id, span_id and trace_flags, OpenTelemetry's names for logs that are not OTLP,
// which Loki's and the collector's parsers look for; as text, trace_id and span_id at the end of the line.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

struct LogIds {
  std::string request_id;
  std::string trace_id, span_id;  // hex; empty: there is no trace
  bool sampled = false;
};

class LogScope {
 public:
  explicit LogScope(LogIds ids);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const LogIds ids_;
  const LogIds* const before_;
};

}  // namespace sluice
