#include "observe/otlp_grpc.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "observe/otlp_connection.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using Headers = std::vector<std::pair<std::string, std::string>>;

std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

int number_of(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// One call: what is left to send of its message, and what came back. The answer's message is of no interest.
struct Call {
  std::string_view unsent;
  int http_status = 0, grpc_status = -1;
  std::string grpc_message{};
  bool closed = false;
  uint32_t error = 0;  // of RST_STREAM
};

// nghttp2's state of one connection.
class Session {
 public:
  Session() {
    nghttp2_session_callbacks* callbacks = nullptr;
    CHECK(nghttp2_session_callbacks_new(&callbacks) == 0, "no memory for an HTTP/2 session");
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    CHECK(nghttp2_session_client_new(&session_, callbacks, this) == 0, "no memory for an HTTP/2 session");
    nghttp2_session_callbacks_del(callbacks);
    CHECK(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0) == 0);
  }
  ~Session() { nghttp2_session_del(session_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // False: the other side takes no calls on this connection any more.
  bool begin(Call* call, const Headers& headers) {
    if (!nghttp2_session_check_request_allowed(session_)) return false;
    call_ = call;
    std::vector<nghttp2_nv> lines;
    for (const auto& [name, value] : headers) lines.push_back(line_of(name, value));
    nghttp2_data_provider body{};
    body.source.ptr = call;
    body.read_callback = read_message;
    return nghttp2_submit_request(session_, nullptr, lines.data(), lines.size(), &body, nullptr) >= 0;
  }
  void end() { call_ = nullptr; }

  // What is to be sent now; empty: nothing. Valid until the next call.
  std::string_view to_send() {
    const uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_, &data);
    return size > 0 ? text_of(data, size_t(size)) : std::string_view();
  }
  // False: what came is not HTTP/2, or said that nothing more will.
  bool take(std::string_view bytes) {
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    return nghttp2_session_mem_recv(session_, data, bytes.size()) == ssize_t(bytes.size()) &&
           nghttp2_session_want_read(session_) != 0;
  }

 private:
  static nghttp2_nv line_of(const std::string& name, const std::string& value) {
    const auto bytes = [](const std::string& s) {
      return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data()));  // nghttp2 copies and does not write
    };
    return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
  }

  static ssize_t read_message(nghttp2_session*, int32_t, uint8_t* to, size_t room, uint32_t* flags,
                              nghttp2_data_source* source, void*) {
    auto& call = *static_cast<Call*>(source->ptr);
    const size_t n = std::min(room, call.unsent.size());
    std::memcpy(to, call.unsent.data(), n);
    call.unsent.remove_prefix(n);
    if (call.unsent.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return ssize_t(n);
  }

  static int on_header(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
                       const uint8_t* value, size_t value_size, uint8_t, void* self) {
    Call* call = static_cast<Session*>(self)->call_;
    if (!call) return 0;
    const std::string_view key = text_of(name, name_size), text = text_of(value, value_size);
    if (key == ":status") call->http_status = number_of(text);
    if (key == "grpc-status") call->grpc_status = number_of(text);
    if (key == "grpc-message") call->grpc_message = text.substr(0, 200);
    return 0;
  }

  static int on_close(nghttp2_session*, int32_t, uint32_t error, void* self) {
    Call* call = static_cast<Session*>(self)->call_;
    if (call) call->closed = true, call->error = error;
    return 0;
  }

  nghttp2_session* session_ = nullptr;
  Call* call_ = nullptr;
};

class GrpcSink final : public OtlpConnection {
 public:
  GrpcSink(const OtlpUrl& url, const TracingSettings& settings) : OtlpConnection(url, settings) {
    headers_ = {{":method", "POST"},
                {":scheme", "http"},
                {":authority", url_.authority()},
                {":path", url_.path},
                {"te", "trailers"},
                {"content-type", "application/grpc"},
                {"user-agent", "sluice"},
                {"grpc-timeout", std::to_string(timeout_.count()) + "m"}};
    for (auto& [name, value] : otlp_headers(settings)) {
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      headers_.emplace_back(std::move(name), std::move(value));
    }
  }

 private:
  Answer exchange(const std::string& body, bool fresh, ErrorCodeOf& error) override {
    if (fresh) session_.emplace();
    // A message is a flag (1 byte, not compressed), its length (4, big endian), its bytes.
    const auto size = uint32_t(body.size());
    std::string message = {0, char(size >> 24), char(size >> 16), char(size >> 8), char(size)};
    message += body;
    Call call{.unsent = message};
    error = make(call);
    session_->end();
    if (error) return {};
    // Reset by the other side, whatever it had said of the call before: an end that may pass.
    if (call.error != 0 && call.grpc_status < 0) {
      close();
      return {Outcome::unreachable, "it ended the call with HTTP/2 error " + std::to_string(call.error)};
    }
    return judge_grpc(call.http_status, call.grpc_status, call.grpc_message);
  }

  // Until the call is closed: what the session wants sent is sent, then what comes is given to it.
  ErrorCodeOf make(Call& call) {
    if (!session_->begin(&call, headers_)) return asio::error::connection_aborted;
    ErrorCodeOf error;
    std::array<char, 16 << 10> buffer;
    while (!call.closed && !error) {
      for (auto bytes = session_->to_send(); !bytes.empty() && !error; bytes = session_->to_send())
        moved([&](auto done) { asio::async_write(*stream_, asio::buffer(bytes), done); }, error);
      size_t came = 0;
      if (!error) came = moved([&](auto done) { stream_->async_read_some(asio::buffer(buffer), done); }, error);
      if (!error && !session_->take({buffer.data(), came}) && !call.closed)
        error = asio::error::no_protocol_option;
    }
    return error;
  }

  // Begins an operation on the stream and waits for its end; the bytes it moved.
  template <class Begin>
  size_t moved(Begin begin, ErrorCodeOf& error) {
    size_t bytes = 0;
    begin([&](ErrorCodeOf ec, size_t n) { error = ec, bytes = n; });
    run();
    return bytes;
  }

  Headers headers_;
  std::optional<Session> session_;  // of stream_
};

}  // namespace

// Codes of gRPC's statuscodes.md; those to be tried again are OTLP's.
TraceSink::Answer judge_grpc(int http, int grpc, const std::string& message) {
  using Outcome = TraceSink::Outcome;
  if (grpc == 0) return {};
  if (grpc < 0) {
    const bool busy = http == 429 || http == 502 || http == 503 || http == 504;
    return {busy ? Outcome::busy : Outcome::refused,
            "it answers HTTP " + std::to_string(http) + " and no gRPC status; is this its gRPC port?"};
  }
  constexpr int kCancelled = 1, kDeadlineExceeded = 4, kResourceExhausted = 8, kAborted = 10, kOutOfRange = 11,
                kUnavailable = 14, kDataLoss = 15;
  const bool busy = grpc == kCancelled || grpc == kDeadlineExceeded || grpc == kResourceExhausted ||
                    grpc == kAborted || grpc == kOutOfRange || grpc == kUnavailable || grpc == kDataLoss;
  return {busy ? Outcome::busy : Outcome::refused,
          "it answers gRPC status " + std::to_string(grpc) + (message.empty() ? "" : " (" + message + ")")};
}

Result<std::unique_ptr<TraceSink>> OtlpGrpc::create(const TracingSettings& settings) {
  auto url = parse_otlp_url(settings.endpoint, OtlpProtocol::grpc);
  if (!url.ok()) return url.error();
  return std::unique_ptr<TraceSink>(std::make_unique<GrpcSink>(*url, settings));
}

}  // namespace sluice
