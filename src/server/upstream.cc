#include "server/upstream.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <charconv>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

namespace {

struct Address {
  std::string host, port = "80";
};

Result<Address> parse_url(const std::string& url) {
  const auto wrong = [&](const char* why) {
    return Error{ErrorCode::kInvalidArgument, "must be http://HOST[:PORT], " + std::string(why), ""};
  };
  constexpr std::string_view kScheme = "http://";
  if (!std::string_view(url).starts_with(kScheme)) return wrong("in the clear");
  std::string rest = url.substr(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.pop_back();
  Address address;
  if (const size_t colon = rest.rfind(':'); colon != std::string::npos) {
    address.port = rest.substr(colon + 1);
    rest.resize(colon);
    int port = 0;
    const char* end = address.port.data() + address.port.size();
    const auto parsed = std::from_chars(address.port.data(), end, port);
    if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535)
      return wrong("a port is 1 to 65535");
  }
  const bool plain = std::all_of(rest.begin(), rest.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (rest.empty() || !plain) return wrong("with a host and no path");
  address.host = std::move(rest);
  return address;
}

// Of one connection, or said anew.
bool is_own(std::string_view name) {
  for (const std::string_view own : {"host", "connection", "content-length", "transfer-encoding", "keep-alive",
                                     "te", "trailer", "upgrade", "expect", "x-canary", "proxy-authorization"})
    if (equal_ignoring_case(name, own)) return true;
  return false;
}

std::string request_text(const HttpRequest& request, const Address& address) {
  std::string text = request.method + " " + request.path;
  if (!request.query.empty()) text += "?" + request.query;
  text += " HTTP/1.1\r\nHost: " + address.host + ":" + address.port;
  for (const auto& [name, value] : request.headers)
    if (!is_own(name)) text += "\r\n" + name + ": " + value;
  // The other server is not to pass it on again.
  text += "\r\nX-Canary: never\r\nConnection: close\r\nContent-Length: " + std::to_string(request.body.size());
  return text + "\r\n\r\n" + request.body;
}

class Call final : public UpstreamCall, public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<asio::io_context> context, std::string text, int timeout_ms,
       std::shared_ptr<UpstreamListener> listener)
      : context_(std::move(context)),
        socket_(*context_),
        resolver_(*context_),
        timer_(*context_),
        text_(std::move(text)),
        timeout_(timeout_ms),
        listener_(std::move(listener)) {
    parser_.body_limit(boost::none);
  }

  void start(const Address& address) {
    post([self = shared_from_this(), address] {
      self->arm();
      self->resolver_.async_resolve(address.host, address.port, [self](error_code ec, auto found) {
        if (ec) return self->end(ec.message());
        asio::async_connect(self->socket_, found, [self](error_code e, const Tcp::endpoint&) {
          if (e) return self->end(e.message());
          self->write();
        });
      });
    });
  }

  void resume() override {
    post([self = shared_from_this()] { self->read_body(); });
  }
  void cancel() override {
    post([self = shared_from_this()] {
      self->listener_.reset();
      self->close();
    });
  }
  // Its context is served no longer, soon.
  void stop() {
    post([self = shared_from_this()] { self->end("this server stops"); });
  }

 private:
  // Nothing is left in the context once its thread has ended: what is posted comes before the close, or not at
  // all. Else the context, the work in it and this would hold each other.
  template <typename Work>
  void post(Work work) {
    std::lock_guard lock(mutex_);
    if (!closed_) asio::post(*context_, std::move(work));
  }

  void arm() {
    timer_.expires_after(std::chrono::milliseconds(timeout_));
    timer_.async_wait([self = shared_from_this()](error_code ec) {
      if (!ec) self->end("no answer in time");
    });
  }

  void write() {
    asio::async_write(socket_, asio::buffer(text_), [self = shared_from_this()](error_code ec, size_t) {
      if (ec) return self->end(ec.message());
      http::async_read_header(self->socket_, self->buffer_, self->parser_, [self](error_code e, size_t) {
        if (e) return self->end(e.message());
        self->tell_head();
      });
    });
  }

  void tell_head() {
    timer_.cancel();
    UpstreamHead head;
    const auto& message = parser_.get();
    head.status = int(message.result_int());
    head.sized = !parser_.chunked() && parser_.content_length().has_value();
    for (const auto& field : message) {
      const std::string name(field.name_string()), value(field.value());
      if (equal_ignoring_case(name, "content-type")) head.content_type = value;
      head.headers.emplace_back(name, value);
    }
    if (listener_) listener_->on_head(std::move(head));
  }

  void read_body() {
    if (!listener_ || reading_) return;
    if (parser_.is_done()) return end("");
    reading_ = true;
    arm();
    parser_.get().body().data = piece_.data();
    parser_.get().body().size = piece_.size();
    http::async_read_some(socket_, buffer_, parser_, [self = shared_from_this()](error_code ec, size_t) {
      self->reading_ = false;
      self->timer_.cancel();
      if (ec == http::error::need_buffer) ec = {};
      const size_t got = self->piece_.size() - self->parser_.get().body().size;
      if (ec) return self->end(ec.message());
      if (got == 0) return self->read_body();
      if (self->listener_) self->listener_->on_body(std::string(self->piece_.data(), got));
    });
  }

  void end(const std::string& error) {
    if (auto listener = std::move(listener_)) listener->on_end(error);
    close();
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    error_code ignored;
    timer_.cancel();
    resolver_.cancel();
    socket_.close(ignored);
  }

  const std::shared_ptr<asio::io_context> context_;
  std::mutex mutex_;
  bool closed_ = false;  // guarded by mutex_
  Tcp::socket socket_;
  Tcp::resolver resolver_;
  asio::steady_timer timer_;
  const std::string text_;
  const int timeout_;  // ms
  std::shared_ptr<UpstreamListener> listener_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 16384> piece_{};
  bool reading_ = false;
};

class UpstreamImpl final : public Upstream {
 public:
  explicit UpstreamImpl(Address address) : address_(std::move(address)) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "sluice-upstream");
      context_->run();
    });
  }
  ~UpstreamImpl() override {
    for (const auto& weak : calls_)
      if (auto call = weak.lock()) call->stop();
    stay_.reset();
    thread_.join();
  }

  std::shared_ptr<UpstreamCall> start(const HttpRequest& request, int timeout_ms,
                                      std::shared_ptr<UpstreamListener> listener) override {
    auto call =
        std::make_shared<Call>(context_, request_text(request, address_), timeout_ms, std::move(listener));
    {
      std::lock_guard lock(mutex_);
      forget_ended();
      calls_.push_back(call);
    }
    call->start(address_);
    return call;
  }

  bool idle() override {
    std::lock_guard lock(mutex_);
    forget_ended();
    return calls_.empty();
  }

 private:
  void forget_ended() {  // needs mutex_
    std::erase_if(calls_, [](const auto& weak) { return weak.expired(); });
  }

  const Address address_;
  const std::shared_ptr<asio::io_context> context_ = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> stay_{context_->get_executor()};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Call>> calls_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace

Status check_upstream_url(const std::string& url) {
  auto address = parse_url(url);
  return address.ok() ? Status() : Status(std::move(address).error());
}

Result<std::unique_ptr<Upstream>> Upstream::create(const std::string& url) {
  auto address = parse_url(url);
  if (!address.ok()) return std::move(address).error();
  return std::unique_ptr<Upstream>(std::make_unique<UpstreamImpl>(std::move(address).value()));
}

}  // namespace sluice
