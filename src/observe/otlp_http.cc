#include "observe/otlp_http.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "observe/otlp_endpoint.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using ErrorCodeOf = boost::system::error_code;

constexpr size_t kAnswerBytes = 64 << 10;  // of a collector's answer; a longer one counts as no answer

class HttpSink final : public TraceSink {
 public:
  HttpSink(OtlpUrl url, const TracingSettings& settings)
      : url_(std::move(url)),
        timeout_(std::max(1, settings.export_timeout_ms)),
        headers_(otlp_headers(settings)) {}

  Answer post(const std::string& body) override {
    const bool kept = stream_.has_value();
    Answer answer = exchange(body);
    // A connection that was kept may have been closed by the other side since.
    if (answer.outcome == Outcome::unreachable && kept) answer = exchange(body);
    return answer;
  }

  void abort() override {
    aborted_.store(true);
    asio::post(context_, [this] {
      if (stream_) stream_->close();
    });
  }

 private:
  Answer exchange(const std::string& body) {
    if (aborted_.load()) return {Outcome::unreachable, "the server stops"};
    ErrorCodeOf error;
    if (!stream_) error = connect();
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
    if (!error) {
      stream_->expires_after(timeout_);
      http::async_write(*stream_, request, [&](ErrorCodeOf ec, size_t) {
        if ((error = ec)) return;
        http::async_read(*stream_, buffer, response, [&](ErrorCodeOf e, size_t) { error = e; });
      });
      run();
    }
    if (error) {
      stream_.reset();
      return {Outcome::unreachable, error == beast::error::timeout ? "no answer in time" : error.message()};
    }
    if (!response.get().keep_alive()) stream_.reset();
    return judge(response.get().result_int());
  }

  static Answer judge(unsigned status) {
    if (status >= 200 && status < 300) return {};
    const bool busy = status == 429 || status == 502 || status == 503 || status == 504;
    return {busy ? Outcome::busy : Outcome::refused, "it answers " + std::to_string(status)};
  }

  ErrorCodeOf connect() {
    ErrorCodeOf error;
    Tcp::resolver resolver(context_);
    const auto found = resolver.resolve(url_.host, url_.port, error);
    if (error) return error;
    stream_.emplace(context_);
    stream_->expires_after(timeout_);
    stream_->async_connect(found, [&](ErrorCodeOf ec, const Tcp::endpoint&) { error = ec; });
    run();
    return error;
  }

  void run() {
    context_.restart();
    context_.run();
  }

  const OtlpUrl url_;
  const std::chrono::milliseconds timeout_;
  const std::vector<std::pair<std::string, std::string>> headers_;
  asio::io_context context_{1};
  std::optional<beast::tcp_stream> stream_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

Result<std::unique_ptr<TraceSink>> OtlpHttp::create(const TracingSettings& settings) {
  auto url = parse_otlp_url(settings.endpoint, OtlpProtocol::http_protobuf);
  if (!url.ok()) return url.error();
  return std::unique_ptr<TraceSink>(std::make_unique<HttpSink>(std::move(url).value(), settings));
}

}  // namespace sluice
