// Where traces go, as a URL says it, and what of the connection OTLP's two transports share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "observe/tracing_settings.h"

namespace sluice {

inline constexpr const char* kTracesPath = "/v1/traces";

enum class OtlpProtocol : uint8_t { http_protobuf, grpc };

struct OtlpUrl {
  std::string host;  // without brackets
  std::string port;
  std::string path;
  std::string authority() const { return (host.find(':') == host.npos ? host : "[" + host + "]") + ":" + port; }
};

// http://HOST[:PORT][/PATH]. By HTTP the port is 4318 where none is given, the path /v1/traces; by gRPC the
// port is 4317, and there is no path but kTracesPath, which is not used: OTEL_EXPORTER_OTLP_ENDPOINT has it
// added before the protocol is known. Errors say what is wrong; https is one, since a collector on the way to
// anywhere else runs beside the server.
Result<OtlpUrl> parse_otlp_url(const std::string& url, OtlpProtocol protocol);

// "name=value" each, as checked by Tracer::create.
std::vector<std::pair<std::string, std::string>> otlp_headers(const TracingSettings& settings);

}  // namespace sluice
