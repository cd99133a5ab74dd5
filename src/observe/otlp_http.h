// OTLP over HTTP/1.1: one connection to the collector, kept open, one export at a time. Boost.Beast lives in
// otlp_http.cc alone.
//
// The collector's HTTP port, and not its gRPC one: gRPC would bring fifty shared libraries into a binary that
// needs only glibc, for the same bytes; every collector has both ports.
#pragma once

#include <memory>
#include <string>

#include "observe/tracer.h"

namespace sluice {

struct OtlpUrl {
  std::string host;  // without brackets
  std::string port;
  std::string path;
};

// http://HOST[:PORT][/PATH]; the port is 4318 where none is given, the path /v1/traces. Errors say what is
// wrong; https is one, since a collector on the way to anywhere else runs beside the server.
Result<OtlpUrl> parse_otlp_url(const std::string& url);

class OtlpHttp {
 public:
  static Result<std::unique_ptr<TraceSink>> create(const TracingSettings& settings);
};

}  // namespace sluice
