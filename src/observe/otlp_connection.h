// What OTLP's two transports share: one connection, kept open, tried a second time where it was. Asio is in
// this header, so only otlp_http.cc and otlp_grpc.cc include it.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "observe/otlp_endpoint.h"
#include "observe/tracer.h"

namespace sluice {

class OtlpConnection : public TraceSink {
 public:
  using ErrorCodeOf = boost::system::error_code;

  OtlpConnection(OtlpUrl url, const TracingSettings& settings)
      : url_(std::move(url)), timeout_(std::max(1, settings.export_timeout_ms)) {}

  Answer post(const std::string& body) final {
    const bool kept = stream_.has_value();
    Answer answer = attempt(body);
    // A connection that was kept may have been closed by the other side since.
    if (answer.outcome == Outcome::unreachable && kept) answer = attempt(body);
    return answer;
  }

  void abort() final {
    aborted_.store(true);
    boost::asio::post(context_, [this] {
      if (stream_) stream_->close();
    });
  }

 protected:
  // On a connection that stands, `fresh` if it is a new one; timeout_ is running. An error closes it.
  virtual Answer exchange(const std::string& body, bool fresh, ErrorCodeOf& error) = 0;

  // Until what was begun on the stream has ended.
  void run() {
    context_.restart();
    context_.run();
  }
  void close() { stream_.reset(); }

  const OtlpUrl url_;
  const std::chrono::milliseconds timeout_;
  boost::asio::io_context context_{1};
  std::optional<boost::beast::tcp_stream> stream_;

 private:
  Answer attempt(const std::string& body) {
    if (aborted_.load()) return {Outcome::unreachable, "the server stops"};
    ErrorCodeOf error;
    const bool fresh = !stream_;
    if (fresh) error = connect();
    Answer answer;
    if (!error) {
      stream_->expires_after(timeout_);
      answer = exchange(body, fresh, error);
    }
    if (!error) return answer;
    close();
    return {Outcome::unreachable,
            error == boost::beast::error::timeout ? "no answer in time" : error.message()};
  }

  // The name is looked up without a limit but the resolver's own.
  ErrorCodeOf connect() {
    using Tcp = boost::asio::ip::tcp;
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

  std::atomic<bool> aborted_{false};
};

}  // namespace sluice
