#include "observe/otlp_endpoint.h"

#include <algorithm>
#include <string_view>

namespace sluice {
namespace {

Error wrong(const std::string& url, const char* why) {
  return {ErrorCode::kInvalidArgument, "expected http://HOST[:PORT][/PATH], got '" + url + "': " + why,
          "tracing.endpoint"};
}

}  // namespace

Result<OtlpUrl> parse_otlp_url(const std::string& url, OtlpProtocol protocol) {
  constexpr std::string_view kScheme = "http://";
  const bool grpc = protocol == OtlpProtocol::grpc;
  if (url.starts_with("https://"))
    return wrong(url, "TLS is not spoken here; send to a collector on this host or in its network");
  if (!url.starts_with(kScheme)) return wrong(url, "it begins otherwise");
  const std::string rest = url.substr(kScheme.size());
  if (std::any_of(rest.begin(), rest.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }))
    return wrong(url, "it has blanks or characters beyond ASCII");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string host = rest.substr(0, slash), path = rest.substr(slash), port;
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    port = host.substr(colon + 1);
    host.resize(colon);
    const bool digits =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(port) < 1 || std::stoi(port) > 65535) return wrong(url, "the port is 1 to 65535");
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return wrong(url, "there is no host");
  const bool bare = path.empty() || path == "/";
  if (grpc && !bare && path != kTracesPath)
    return wrong(url, "gRPC has no path; is this the collector's HTTP port?");
  return OtlpUrl{
      host, port.empty() ? (grpc ? "4317" : "4318") : port,
      grpc ? "/opentelemetry.proto.collector.trace.v1.TraceService/Export" : (bare ? kTracesPath : path)};
}

std::vector<std::pair<std::string, std::string>> otlp_headers(const TracingSettings& settings) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& pair : settings.headers) {
    const size_t equals = pair.find('=');
    out.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return out;
}

}  // namespace sluice
