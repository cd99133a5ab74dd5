#include "observe/otlp_http.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <utility>
#include <vector>

#include "observe/otlp_connection.h"

namespace sluice {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kAnswerBytes = 64 << 10;  // of a collector's answer; a longer one counts as no answer

class HttpSink final : public OtlpConnection {
 public:
  HttpSink(OtlpUrl url, const TracingSettings& settings)
      : OtlpConnection(std::move(url), settings), headers_(otlp_headers(settings)) {}

 private:
  Answer exchange(const std::string& body, bool, ErrorCodeOf& error) override {
    http::request<http::string_body> request{http::verb::post, url_.path, 11};
    request.set(http::field::host, url_.authority());
    request.set(http::field::user_agent, "sluice");
    request.set(http::field::content_type, "application/x-protobuf");
    for (const auto& [name, value] : headers_) request.set(name, value);
    request.body() = body;
    request.prepare_payload();
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> response;
    response.body_limit(kAnswerBytes);
    http::async_write(*stream_, request, [&](ErrorCodeOf ec, size_t) {
      if ((error = ec)) return;
      http::async_read(*stream_, buffer, response, [&](ErrorCodeOf e, size_t) { error = e; });
    });
    run();
    if (error) return {};
    if (!response.get().keep_alive()) close();
    return judge(response.get().result_int());
  }

  static Answer judge(unsigned status) {
    if (status >= 200 && status < 300) return {};
    const bool busy = status == 429 || status == 502 || status == 503 || status == 504;
    return {busy ? Outcome::busy : Outcome::refused, "it answers " + std::to_string(status)};
  }

  const std::vector<std::pair<std::string, std::string>> headers_;
};

}  // namespace

Result<std::unique_ptr<TraceSink>> OtlpHttp::create(const TracingSettings& settings) {
  auto url = parse_otlp_url(settings.endpoint, OtlpProtocol::http_protobuf);
  if (!url.ok()) return url.error();
  return std::unique_ptr<TraceSink>(std::make_unique<HttpSink>(std::move(url).value(), settings));
}

}  // namespace sluice
