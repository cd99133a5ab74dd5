// OTLP over HTTP/1.1: one connection to the collector, kept open, one export at a time. Boost.Beast lives in
// otlp_http.cc alone.
#pragma once

#include <memory>

#include "observe/tracer.h"

namespace sluice {

class OtlpHttp {
 public:
  static Result<std::unique_ptr<TraceSink>> create(const TracingSettings& settings);
};

}  // namespace sluice
