#include "server/connection.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <charconv>

#include "base/faults.h"
#include "base/log.h"
#include "server/connection_meters.h"
#include "server/limits.h"
#include "server/socket_faults.h"

namespace sluice {

namespace {

constexpr TimeNs kMs = 1'000'000;

}  // namespace

Connection::Connection(std::shared_ptr<Loop> loop, Loop::Socket socket, uint64_t address)
    : loop_(std::move(loop)), socket_(std::move(socket)), address_(address) {
  if (loop_->shared.tls) {
    // OpenSSL's reads and writes take the socket as it is.
    boost::system::error_code ignored;
    socket_.native_non_blocking(true, ignored);
    tls_ = std::make_unique<TlsSession>(loop_->shared.tls, socket_.native_handle());
  }
  connection_meters().open.set(loop_->shared.connections.fetch_add(1, std::memory_order_relaxed) + 1);
}

Connection::~Connection() { account_body(0); }

template <typename Work>
void Connection::guarded(Work&& work) {
  try {
    work();
  } catch (const std::exception& e) {
    LOG(error, "an answer failed: {}", e.what());
    left("internal_error");
  }
}

void Connection::start() {
  const ServerConfig& config = loop_->shared.config;
  // A handshake has as long as a request's head.
  deadline_ = now_ns() + (tls_ ? config.header_timeout_ms : config.idle_timeout_ms) * kMs;
  arm_read();
}

ssize_t Connection::receive(char* data, size_t bytes) {
  if (faults::armed() && !passes_faults(socket_.native_handle(), SocketSide::reading, int64_t(state_),
                                        tls_ ? nullptr : &bytes)) [[unlikely]]
    return -1;
  return tls_ ? tls_->read(data, bytes) : ::recv(socket_.native_handle(), data, bytes, MSG_DONTWAIT);
}

ssize_t Connection::transmit(const char* data, size_t bytes) {
  ++loop_->writes;
  if (faults::armed() && !passes_faults(socket_.native_handle(), SocketSide::sending, int64_t(state_),
                                        tls_ ? nullptr : &bytes)) [[unlikely]]
    return -1;
  return tls_ ? tls_->write(data, bytes)
              : ::send(socket_.native_handle(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::refuse(int status, const char* message) {
  if (tls_) return close();  // no word before a handshake, which is not worth its cost here
  set_state(State::answering);
  keep_alive_ = false;
  respond(loop_->shared.handler->protocol_error(status, message));
}

void Connection::set_state(State state) {
  const auto is_busy = [](State s) {
    return s == State::head || s == State::body || s == State::answering || s == State::closing;
  };
  if (is_busy(state) != is_busy(state_))
    loop_->shared.busy.fetch_add(is_busy(state) ? 1 : -1, std::memory_order_relaxed);
  state_ = state;
  gone_.store(state == State::closed || state == State::linger, std::memory_order_relaxed);
}

void Connection::account_body(size_t bytes) {
  loop_->shared.body_bytes.fetch_add(bytes - counted_body_, std::memory_order_relaxed);
  counted_body_ = bytes;
}

void Connection::arm_read() {
  if (reading_ || state_ == State::closed) return;
  if (state_ == State::answering && in_.size() > limits::kPipelinedBytes) return;
  reading_ = true;
  socket_.async_wait(Loop::Socket::wait_read, [self = shared_from_this()](boost::system::error_code ec) {
    self->reading_ = false;
    if (!ec) self->guarded([&] { self->on_readable(); });
  });
}

void Connection::arm_write() {
  if (writing_ || state_ == State::closed) return;
  writing_ = true;
  socket_.async_wait(Loop::Socket::wait_write, [self = shared_from_this()](boost::system::error_code ec) {
    self->writing_ = false;
    if (ec) return;
    const bool reads = self->tls_ && self->tls_->read_wants_write();
    self->guarded([&] { reads ? self->on_readable() : self->send(); });
  });
}

void Connection::on_readable() {
  // A few rounds, then the others' turn.
  for (int round = 0; round < 4 && state_ != State::closed; ++round) {
    auto& scratch = loop_->scratch;
    const ssize_t n = receive(scratch.data(), scratch.size());
    if (n == 0) {
      // An answer that is made is still sent to a client that only closed its sending side.
      if (state_ == State::closing || (state_ == State::idle && unsent() > 0)) return set_state(State::closing);
      return left("client_disconnect");
    }
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return left("client_disconnect");
      if (tls_ && tls_->read_wants_write()) return arm_write();
      break;
    }
    if (faults::armed() && faults::met_at(Fault::alloc_failure, {5})) [[unlikely]]
      throw std::bad_alloc();
    take({scratch.data(), size_t(n)});
    if (size_t(n) < scratch.size()) break;
    if (state_ == State::answering && in_.size() > limits::kPipelinedBytes) break;
  }
  if (state_ != State::closed) arm_read();
}

void Connection::take(std::string_view bytes) {
  if (state_ == State::linger || state_ == State::closing)
    return;  // an answer was given before all of it was read
  if (state_ == State::answering || unsent() > 0) {
    in_.append(bytes);
    return;
  }
  if (in_.empty()) {
    parse(bytes);
    if (state_ != State::closed && state_ != State::linger && state_ != State::closing) in_.append(bytes);
    return;
  }
  in_.append(bytes);
  next_request();
}

// Goes on with bytes that were read before.
void Connection::next_request() {
  if (taking_ || in_.empty() || unsent() > 0) return;
  if (state_ != State::idle && state_ != State::head && state_ != State::body) return;
  std::string bytes = std::move(in_);
  in_.clear();
  std::string_view rest = bytes;
  parse(rest);
  if (state_ == State::closed || state_ == State::linger || state_ == State::closing) return;
  if (rest.size() == bytes.size())
    in_ = std::move(bytes);
  else
    in_.assign(rest);
}

void Connection::parse(std::string_view& bytes) {
  const ServerConfig& config = loop_->shared.config;
  taking_ = true;
  while (!bytes.empty() && (state_ == State::idle || state_ == State::head || state_ == State::body) &&
         unsent() == 0) {
    if (state_ == State::idle) {
      while (!bytes.empty() && (bytes.front() == '\r' || bytes.front() == '\n')) bytes.remove_prefix(1);
      if (bytes.empty()) break;
      parser_ = std::make_unique<HttpParser>(config.max_header_bytes, config.max_body_bytes);
      set_state(State::head);
      began_ = now_ns();
      deadline_ = began_ + config.header_timeout_ms * kMs;
    }
    const size_t taken = parser_->take(bytes);
    bytes.remove_prefix(taken);
    if (parser_->error_status() != 0) {
      fail(parser_->error_status(), parser_->error());
      break;
    }
    if (state_ == State::head && parser_->head_done()) {
      set_state(State::body);
      deadline_ = now_ns() + config.body_timeout_ms * kMs;
      if (parser_->body_pending() && bytes.empty() && parser_->expects_continue()) {
        out_ += "HTTP/1.1 100 Continue\r\n\r\n";
        send();
        continue;
      }
    }
    account_body(parser_->body_bytes());
    if (loop_->shared.body_bytes.load(std::memory_order_relaxed) > limits::kBodyBytesInFlight) {
      fail(503, "Too many request bodies are being read; try again later.");
      break;
    }
    if (parser_->done())
      dispatch();
    else if (taken == 0)
      break;
  }
  // What the parser leaves is part of a head or of a chunk's head; without a bound it would grow for ever.
  if ((state_ == State::head || state_ == State::body) &&
      bytes.size() > config.max_header_bytes + (64u << 10)) {
    fail(400, "A chunk's head is too long.");
  }
  taking_ = false;
}

void Connection::dispatch() {
  HttpRequest request = parser_->release();
  parser_.reset();
  set_state(State::answering);
  deadline_ = 0;
  request.began = began_;
  request.received = now_ns();
  begun_ = chunked_ = false;
  answer_headers_.clear();
  keep_alive_ = request.keep_alive && !loop_->shared.draining.load(std::memory_order_relaxed);
  head_only_ = request.method == "HEAD";
  version_10_ = request.version == 10;
  loop_->note_work();
  loop_->shared.handler->handle(std::move(request), shared_from_this());
}

// An answer to bytes that are no request; the connection ends, since where the next one starts is unknown.
void Connection::fail(int status, std::string_view message) {
  HttpResponse response = loop_->shared.handler->protocol_error(status, message);
  parser_.reset();
  in_.clear();
  set_state(State::answering);
  deadline_ = 0;
  answer_headers_.clear();
  begun_ = chunked_ = head_only_ = false;
  keep_alive_ = false;
  respond(std::move(response));
}

void Connection::append_head(const HttpResponse& response, bool chunked, bool sized) {
  loop_->take_buffer(out_);
  out_ += "HTTP/1.1 ";
  out_ += std::to_string(response.status);
  out_ += ' ';
  out_ += reason_phrase(response.status);
  out_ += "\r\nServer: sluice\r\nDate: ";
  out_ += loop_->date();
  if (!response.content_type.empty()) {
    out_ += "\r\nContent-Type: ";
    out_ += response.content_type;
  }
  if (chunked) out_ += "\r\nTransfer-Encoding: chunked";
  if (sized) out_ += "\r\nContent-Length: " + std::to_string(response.body.size());
  if (!keep_alive_)
    out_ += "\r\nConnection: close";
  else if (version_10_)
    out_ += "\r\nConnection: keep-alive";
  for (const auto& [name, value] : response.headers) {
    out_ += "\r\n";
    out_ += name;
    out_ += ": ";
    out_ += value;
  }
  out_ += answer_headers_;
  out_ += "\r\n\r\n";
}

void Connection::add_header(std::string_view name, std::string_view value) {
  answer_headers_.append("\r\n").append(name).append(": ").append(value);
}

void Connection::respond(HttpResponse response) {
  if (state_ != State::answering || begun_) return;
  if (loop_->shared.draining.load(std::memory_order_relaxed)) keep_alive_ = false;
  append_head(response, false, response.status != 204 && response.status != 304);
  if (!head_only_) out_ += response.body;
  loop_->shared.handler->answered(response.status);
  answer_done(keep_alive_);
}

void Connection::begin(HttpResponse head) {
  if (state_ != State::answering || begun_) return;
  begun_ = true;
  chunked_ = !version_10_;
  if (version_10_) keep_alive_ = false;
  append_head(head, chunked_, false);
}

std::string& Connection::frames() {
  if (state_ != State::answering || !begun_) {
    loop_->dropped.clear();
    return loop_->dropped;
  }
  if (chunk_.empty()) {
    loop_->take_buffer(chunk_);
    chunk_.assign(kChunkRoom, ' ');
  }
  return chunk_;
}

// What frames there are become one chunk of what is to be sent.
void Connection::seal_chunk() {
  if (chunk_.size() <= kChunkRoom) return;
  size_t from = kChunkRoom;
  if (chunked_) {
    char head[kChunkRoom];
    char* end = std::to_chars(head, head + sizeof head, chunk_.size() - kChunkRoom, 16).ptr;
    *end++ = '\r', *end++ = '\n';
    from -= size_t(end - head);
    std::copy(head, end, chunk_.begin() + ptrdiff_t(from));
    chunk_ += "\r\n";
  }
  if (out_.empty()) {
    out_.swap(chunk_);
    sent_ = from;
  } else {
    out_.append(chunk_, from);
  }
  loop_->give_buffer(chunk_);
}

void Connection::flush() {
  if (state_ != State::answering) return;
  seal_chunk();
  send();
}

void Connection::end(bool complete) {
  if (state_ != State::answering || !begun_) return;
  seal_chunk();
  if (chunked_ && complete) out_ += "0\r\n\r\n";
  loop_->shared.handler->answered(complete ? 200 : 500);
  answer_done(complete && keep_alive_);
}

void Connection::answer_done(bool keep_alive) {
  sending_ = std::move(listener_);
  account_body(0);
  begun_ = false;
  was_full_ = false;
  if (loop_->shared.draining.load(std::memory_order_relaxed)) keep_alive = false;
  set_state(keep_alive ? State::idle : State::closing);
  deadline_ = now_ns() + loop_->shared.config.idle_timeout_ms * kMs;
  send();
}

void Connection::send() {
  if (state_ == State::closed) return;
  const size_t before = sent_;
  while (sent_ < out_.size()) {
    const ssize_t n = transmit(out_.data() + sent_, out_.size() - sent_);
    if (n > 0) {
      sent_ += size_t(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return left("client_disconnect");
    break;
  }
  if (sent_ < out_.size()) {
    if (sent_ > before || write_deadline_ == 0)
      write_deadline_ = now_ns() + loop_->shared.config.write_timeout_ms * kMs;
    // Sent bytes are dropped once they are most of the buffer, so that this stays linear.
    if (sent_ > out_.size() / 2) {
      out_.erase(0, sent_);
      sent_ = 0;
    }
    arm_write();
  } else {
    loop_->give_buffer(out_);
    sent_ = 0;
    write_deadline_ = 0;
  }
  if (sent_ == out_.size()) {
    if (auto done = std::move(sending_)) done->on_sent();
  }
  if (unsent() > limits::kStreamHighWater) {
    was_full_ = true;
  } else if (was_full_ && unsent() < limits::kStreamHighWater / 2) {
    was_full_ = false;
    if (auto listener = listener_) listener->on_writable();
  }
  if (state_ == State::closing && sent_ == out_.size()) {
    set_state(State::linger);
    deadline_ = now_ns() + limits::kLingerMs * kMs;
    boost::system::error_code ignored;
    if (tls_) tls_->close_notify();
    socket_.shutdown(Loop::Socket::shutdown_send, ignored);
    arm_read();
  } else if (state_ == State::idle && sent_ == out_.size()) {
    next_request();
    if (state_ != State::closed) arm_read();
  }
}

// The client is gone, or as good as.
void Connection::left(const char* why) {
  if (state_ == State::closed) return;
  const bool answering = state_ == State::answering;
  auto listener = listener_ ? std::move(listener_) : std::move(sending_);
  close();
  if (answering) {
    loop_->shared.handler->answered(0);
  }
  if (listener) listener->on_gone(why);
}

void Connection::close() {
  if (state_ == State::closed) return;
  set_state(State::closed);
  loop_->shared.addresses.leave(address_);
  auto self = shared_from_this();
  listener_.reset();
  sending_.reset();
  parser_.reset();
  account_body(0);
  std::string().swap(in_);
  loop_->give_buffer(out_);
  loop_->give_buffer(chunk_);
  sent_ = 0;
  boost::system::error_code ignored;
  socket_.close(ignored);
  loop_->connections.erase(self);
  connection_meters().open.set(loop_->shared.connections.fetch_sub(1, std::memory_order_relaxed) - 1);
}

void Connection::expire(TimeNs now) {
  guarded([&] { pass_deadline(now); });
}

void Connection::pass_deadline(TimeNs now) {
  if (write_deadline_ != 0 && now > write_deadline_) {
    connection_meters().write_timeouts.add();
    return left("write_timeout");
  }
  if (deadline_ == 0 || now < deadline_) return;
  switch (state_) {
    case State::idle:
      if (unsent() == 0) close();
      break;
    case State::linger:
      close();
      break;
    case State::head:
    case State::body:
      connection_meters().read_timeouts.add();
      fail(408, state_ == State::head ? "The request head did not arrive in time."
                                      : "The request body did not arrive in time.");
      break;
    case State::answering:
    case State::closing:
    case State::closed:
      break;
  }
}

void Connection::drain() {
  const auto rests = [this] { return state_ == State::idle && unsent() == 0 && in_.empty(); };
  if (!rests()) return;
  guarded([this] { on_readable(); });  // a request that has come already is answered
  if (rests() && began_ != 0) close();
}

void Connection::shut_down() {
  guarded([this] {
    if (auto listener = listener_) listener->on_shutdown();
  });
}

void Connection::wake() { loop_->wake(shared_from_this()); }

void Connection::post(std::function<void()> work) {
  boost::asio::post(loop_->context, [self = shared_from_this(), work = std::move(work)] {
    self->loop_->note_work();
    self->guarded(work);
  });
}

void Connection::run_wake() {
  guarded([this] {
    if (faults::armed() && faults::met_at(Fault::alloc_failure, {3})) [[unlikely]]
      throw std::bad_alloc();
    if (auto listener = listener_) listener->on_wake();
  });
}

}  // namespace sluice
