#include "cli/bench_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <memory>

namespace sluice::cli {
namespace {

constexpr size_t kMaxKeptBody = 64 << 10;
constexpr size_t kMaxHead = 64 << 10;
constexpr size_t kMaxLine = 4 << 20;

struct AddrInfoFree {
  void operator()(addrinfo* a) const { freeaddrinfo(a); }
};
using Addresses = std::unique_ptr<addrinfo, AddrInfoFree>;

Result<Addresses> resolve(const Target& target) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int e = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found); e != 0)
    return Error{ErrorCode::kIo, fmt::format("{}:{}: {}", target.host, target.port, gai_strerror(e))};
  return Addresses(found);
}

std::string_view header_value(std::string_view head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != std::string_view::npos && at + 2 < head.size();
       at = head.find("\r\n", at + 2)) {
    const std::string_view line = head.substr(at + 2, head.find("\r\n", at + 2) - at - 2);
    if (line.size() > name.size() && line[name.size()] == ':' &&
        strncasecmp(line.data(), name.data(), name.size()) == 0) {
      const size_t begin = line.find_first_not_of(' ', name.size() + 1);
      return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
    }
  }
  return {};
}

bool contains_word(std::string_view text, std::string_view word) {
  return std::search(text.begin(), text.end(), word.begin(), word.end(),
                     [](char a, char b) { return tolower(a) == b; }) != text.end();
}

// The number after "key": in a JSON text; -1: absent. A whole parse per event would compete with the server for
// the CPU.
int number_after(std::string_view json, std::string_view key) {
  size_t at = json.find(key);
  if (at == std::string_view::npos) return -1;
  at = json.find_first_not_of(": \t", at + key.size());
  int value = -1;
  if (at != std::string_view::npos) std::from_chars(json.data() + at, json.data() + json.size(), value);
  return value;
}

// `"choices": [ {` — an event that carries text rather than only usage.
bool has_choice(std::string_view json) {
  size_t at = json.find("\"choices\"");
  if (at == std::string_view::npos) return false;
  at = json.find_first_not_of(": \t", at + 9);
  if (at == std::string_view::npos || json[at] != '[') return false;
  at = json.find_first_not_of(" \t", at + 1);
  return at != std::string_view::npos && json[at] == '{';
}

// Reads one answer as its bytes come.
class Answer {
 public:
  explicit Answer(Outcome& outcome) : outcome_(outcome) {}

  // False: broken; the outcome says how.
  bool feed(std::string_view bytes, TimeNs now) {
    while (!bytes.empty() && !done_) {
      switch (state_) {
        case State::head:
          if (!feed_head(bytes)) return false;
          break;
        case State::body:
          feed_body(bytes, now);
          break;
        case State::chunk_size:
          if (!feed_chunk_size(bytes)) return false;
          break;
        case State::chunk_end:
          skip_chunk_end(bytes);
          break;
      }
    }
    return true;
  }
  // The peer closed. True: that was a proper end.
  bool closed() {
    if (state_ == State::body && until_close_) done_ = true;
    return done_;
  }
  bool done() const { return done_; }
  bool started() const { return state_ != State::head || !pending_.empty(); }
  bool keep_alive() const { return keep_alive_; }

 private:
  enum class State { head, body, chunk_size, chunk_end };

  bool broken(const char* why) {
    outcome_.error = why;
    return false;
  }

  bool feed_head(std::string_view& bytes) {
    const size_t before = pending_.size();
    pending_ += bytes;
    const size_t end = pending_.find("\r\n\r\n", before > 3 ? before - 3 : 0);
    if (end == std::string::npos) {
      bytes = {};
      return pending_.size() <= kMaxHead || broken("the answer's head is endless");
    }
    bytes.remove_prefix(end + 4 - before);
    const std::string head = std::exchange(pending_, {}).substr(0, end + 2);
    if (!head.starts_with("HTTP/1.") || head.size() < 12) return broken("this is no HTTP/1.1 answer");
    std::from_chars(head.data() + 9, head.data() + 12, outcome_.status);
    events_ = contains_word(header_value(head, "Content-Type"), "text/event-stream");
    keep_alive_ = !contains_word(header_value(head, "Connection"), "close") && head[7] != '0';
    const std::string_view length = header_value(head, "Content-Length");
    if (contains_word(header_value(head, "Transfer-Encoding"), "chunked")) {
      chunked_ = true;
      state_ = State::chunk_size;
    } else if (!length.empty()) {
      std::from_chars(length.data(), length.data() + length.size(), remaining_);
      state_ = State::body;
      done_ = remaining_ == 0;
    } else {
      until_close_ = true;
      keep_alive_ = false;
      remaining_ = SIZE_MAX;
      state_ = State::body;
    }
    return true;
  }

  bool feed_chunk_size(std::string_view& bytes) {
    const size_t end = bytes.find('\n');
    pending_ += bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos) return pending_.size() < kMaxHead || broken("a chunk's size is endless");
    const auto [at, error] =
        std::from_chars(pending_.data(), pending_.data() + pending_.size(), remaining_, 16);
    if (error != std::errc()) return broken("a chunk's size is no number");
    pending_.clear();
    last_chunk_ = remaining_ == 0;
    state_ = last_chunk_ ? State::chunk_end : State::body;
    return true;
  }

  void skip_chunk_end(std::string_view& bytes) {
    const size_t end = bytes.find('\n');
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos) return;
    done_ = last_chunk_;
    state_ = State::chunk_size;
  }

  void feed_body(std::string_view& bytes, TimeNs now) {
    const std::string_view part = bytes.substr(0, remaining_);
    bytes.remove_prefix(part.size());
    if (!until_close_) remaining_ -= part.size();
    if (events_)
      feed_events(part, now);
    else if (outcome_.body.size() < kMaxKeptBody)
      outcome_.body += part;
    if (remaining_ > 0) return;
    if (chunked_)
      state_ = State::chunk_end;
    else
      done_ = true;
  }

  void feed_events(std::string_view part, TimeNs now) {
    while (!part.empty()) {
      const size_t end = part.find('\n');
      if (line_.size() < kMaxLine) line_ += part.substr(0, end);
      if (end == std::string_view::npos) return;
      part.remove_prefix(end + 1);
      on_line(line_, now);
      line_.clear();
    }
  }

  void on_line(std::string_view line, TimeNs now) {
    if (!line.starts_with("data:") || contains_word(line.substr(0, 16), "[done]")) return;
    if (has_choice(line))
      outcome_.events.push_back(now);
    else if (line.find("\"error\"") != std::string_view::npos)
      outcome_.error = line.substr(0, 300);
    if (const int tokens = number_after(line, "\"completion_tokens\""); tokens >= 0)
      outcome_.usage_tokens = tokens;
  }

  Outcome& outcome_;
  State state_ = State::head;
  std::string pending_, line_;
  size_t remaining_ = 0;
  bool events_ = false, chunked_ = false, until_close_ = false, last_chunk_ = false, keep_alive_ = true,
       done_ = false;
};

struct Connection {
  int fd = -1;
  size_t exchange = SIZE_MAX;  // SIZE_MAX: idle, kept alive
  std::string out;
  size_t written = 0;
  std::unique_ptr<Answer> answer;
  TimeNs deadline = 0;
  bool reused = false;  // a kept-alive connection may turn out closed: then the exchange is sent once more
};

class LoadRun {
 public:
  LoadRun(const Target& target, const Load& load, const addrinfo& address)
      : target_(target),
        load_(load),
        address_(address),
        exchanges_(load.exchanges.begin(), load.exchanges.end()),
        outcomes_(load.exchanges.size()),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    CHECK(epoll_ >= 0);
    // A connection for each exchange in flight; shells give 1,024.
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~LoadRun() {
    for (auto& c : connections_)
      if (c->fd >= 0) close(c->fd);
    close(epoll_);
  }

  std::vector<Outcome> run(const std::function<void(size_t)>& progress) {
    begin_ = now_ns();
    TimeNs told = 0;
    while (!over_ && (load_.next || ended_ < outcomes_.size())) {
      start_due();
      epoll_event events[256];
      const int n = epoll_wait(epoll_, events, 256, wait_ms());
      const TimeNs now = now_ns();
      for (int i = 0; i < n; ++i)
        on_ready(*static_cast<Connection*>(events[i].data.ptr), events[i].events, now);
      expire(now);
      if (now - told > 100'000'000) {
        if (progress) progress(ended_);
        if (load_.is_cancelled && load_.is_cancelled()) over_ = true;
        told = now;
      }
      if (load_.stop_after > 0 && now - begin_ >= load_.stop_after) over_ = true;
    }
    leave_open();
    return {std::make_move_iterator(outcomes_.begin()), std::make_move_iterator(outcomes_.end())};
  }

 private:
  bool open_loop() const { return !load_.start.empty(); }

  void start_due() {
    // Of those that are made on demand, a bound: where all fail at once, the load must still end some time.
    for (int begun = 0; next_ < outcomes_.size() || (load_.next && begun < load_.concurrency); ++begun) {
      if (open_loop() ? begin_ + load_.start[next_] > now_ns() : int(in_flight_) >= load_.concurrency) return;
      if (next_ == outcomes_.size()) {
        exchanges_.push_back(load_.next(next_));
        outcomes_.emplace_back();
      }
      start(next_++);
    }
  }

  // Until the next exchange is due, or the load is over; at most 100.
  int wait_ms() const {
    TimeNs until = now_ns() + 100'000'000;
    if (open_loop() && next_ < outcomes_.size()) until = std::min(until, begin_ + load_.start[next_]);
    if (load_.stop_after > 0) until = std::min(until, begin_ + load_.stop_after);
    return int(std::clamp<TimeNs>((until - now_ns() + 999'999) / 1'000'000, 0, 100));
  }

  void leave_open() {
    const TimeNs now = now_ns();
    for (auto& c : connections_) {
      if (c->fd < 0 || c->exchange == SIZE_MAX) continue;
      outcomes_[c->exchange].open = true;
      outcomes_[c->exchange].end = now;
      drop(*c);
    }
  }

  void start(size_t exchange) {
    ++in_flight_;
    while (!idle_.empty()) {
      Connection* c = idle_.back();
      idle_.pop_back();
      if (c->fd >= 0 && c->exchange == SIZE_MAX) return send(*c, exchange, true);
    }
    open_and_send(exchange);
  }

  void open_and_send(size_t exchange) {
    if (closed_.empty()) closed_.push_back(connections_.emplace_back(std::make_unique<Connection>()).get());
    Connection* c = closed_.back();
    closed_.pop_back();
    outcomes_[exchange].sent = now_ns();  // should it come to no more
    c->fd = socket(address_.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->exchange = exchange;
    if (c->fd < 0) return fail(*c, std::strerror(errno));
    const int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, address_.ai_addr, address_.ai_addrlen) != 0 && errno != EINPROGRESS)
      return fail(*c, std::strerror(errno));
    epoll_event event{EPOLLIN | EPOLLOUT | EPOLLET, {c}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, c->fd, &event);
    send(*c, exchange, false);
  }

  void send(Connection& c, size_t exchange, bool reused) {
    const Exchange& e = exchanges_[exchange];
    c.exchange = exchange;
    c.reused = reused;
    outcomes_[exchange] = {};
    outcomes_[exchange].sent = now_ns();
    if (open_loop()) outcomes_[exchange].late = outcomes_[exchange].sent - begin_ - load_.start[exchange];
    c.deadline = outcomes_[exchange].sent + load_.timeout;
    c.answer = std::make_unique<Answer>(outcomes_[exchange]);
    c.out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", e.method, target_.prefix, e.path, target_.host,
                        target_.port);
    if (!load_.keep_alive) c.out += "Connection: close\r\n";
    if (!target_.api_key.empty()) c.out += fmt::format("Authorization: Bearer {}\r\n", target_.api_key);
    if (!target_.lane.empty()) c.out += fmt::format("X-Priority: {}\r\n", target_.lane);
    for (const std::string& header : target_.headers) c.out += header + "\r\n";
    if (!target_.request_id_prefix.empty())
      c.out += fmt::format("X-Request-Id: {}{}\r\n", target_.request_id_prefix, exchange);
    if (!e.body.empty())
      c.out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", e.body.size());
    c.out += "\r\n" + e.body;
    c.written = 0;
    flush(c);
  }

  void flush(Connection& c) {
    while (c.written < c.out.size()) {
      const ssize_t n = ::send(c.fd, c.out.data() + c.written, c.out.size() - c.written, MSG_NOSIGNAL);
      if (n > 0)
        c.written += size_t(n);
      else if (errno == EAGAIN || errno == EINPROGRESS || errno == ENOTCONN)
        return;
      else
        return lost(c, std::strerror(errno));
    }
  }

  void on_ready(Connection& c, uint32_t what, TimeNs now) {
    if (c.fd < 0) return;
    if (c.exchange != SIZE_MAX && (what & EPOLLOUT) && c.written < c.out.size()) flush(c);
    if (c.fd >= 0 && (what & (EPOLLIN | EPOLLHUP | EPOLLERR))) read(c, now);
  }

  void read(Connection& c, TimeNs now) {
    char buffer[16384];
    while (c.fd >= 0) {
      const ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
      if (n < 0 && errno == EAGAIN) return;
      if (c.exchange == SIZE_MAX) return drop(c);  // an idle connection was closed, or something came unasked
      if (n < 0) return lost(c, std::strerror(errno));
      if (n == 0) {
        if (c.answer->closed()) return finish(c, now);
        return lost(c, "the server closed the connection before the answer's end");
      }
      if (!c.answer->feed({buffer, size_t(n)}, now)) return fail(c, outcomes_[c.exchange].error);
      if (c.answer->done()) return finish(c, now);
    }
  }

  void lost(Connection& c, const char* why) {
    if (!c.reused || c.answer->started()) return fail(c, why);
    const size_t exchange = c.exchange;
    drop(c);
    open_and_send(exchange);
  }

  void fail(Connection& c, const std::string& why) {
    Outcome& o = outcomes_[c.exchange];
    o.error = why;
    o.end = now_ns();
    drop(c);
    ended();
  }

  void finish(Connection& c, TimeNs now) {
    Outcome& o = outcomes_[c.exchange];
    o.end = now;
    if (o.status != 200 && o.error.empty())
      o.error = fmt::format("HTTP {}: {}", o.status, o.body.substr(0, 300));
    c.exchange = SIZE_MAX;
    if (load_.keep_alive && c.answer->keep_alive())
      idle_.push_back(&c);
    else
      drop(c);
    ended();
  }

  void drop(Connection& c) {
    if (c.fd >= 0) close(c.fd);
    c.fd = -1;
    c.exchange = SIZE_MAX;
    closed_.push_back(&c);
  }

  void ended() {
    ++ended_;
    --in_flight_;
  }

  void expire(TimeNs now) {
    if (now < next_expiry_) return;
    next_expiry_ = now + 100'000'000;
    for (auto& c : connections_)
      if (c->fd >= 0 && c->exchange != SIZE_MAX && now > c->deadline) fail(*c, "timed out");
  }

  const Target& target_;
  const Load& load_;
  const addrinfo& address_;
  std::deque<Exchange> exchanges_;
  std::deque<Outcome> outcomes_;  // answers that come refer to theirs
  bool over_ = false;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;    // some may have been closed or taken since
  std::vector<Connection*> closed_;  // exactly those
  int epoll_;
  size_t next_ = 0, ended_ = 0, in_flight_ = 0;
  TimeNs begin_ = 0, next_expiry_ = 0;
};

// The first address that lets a connection in: "localhost" may name two.
Result<const addrinfo*> reachable(const Target& target, const addrinfo* addresses) {
  int error = 0;
  for (const addrinfo* a = addresses; a; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool ok = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0;
    error = errno;
    if (fd >= 0) close(fd);
    if (ok) return a;
  }
  return Error{ErrorCode::kIo,
               fmt::format("cannot connect to {}:{}: {}", target.host, target.port, std::strerror(error))};
}

}  // namespace

Result<Target> parse_target(const std::string& url) {
  const auto bad = [&](const char* why) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("URL: {}, got '{}'", why, url)};
  };
  std::string_view rest = url;
  if (!rest.starts_with("http://")) return bad("expected http://HOST:PORT (https is not spoken here)");
  rest.remove_prefix(7);
  Target target;
  const std::string_view authority = rest.substr(0, rest.find('/'));
  target.prefix = rest.substr(authority.size());
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  if (target.prefix.ends_with("/v1")) target.prefix.resize(target.prefix.size() - 3);
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad("an address in brackets does not end");
    target.host = authority.substr(1, close - 1);
    colon = close + 1 < authority.size() ? close + 1 : std::string_view::npos;
  } else {
    target.host = authority.substr(0, colon);
  }
  if (colon != std::string_view::npos) target.port = authority.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(target.port.data(), target.port.data() + target.port.size(), port);
  if (target.host.empty()) return bad("the host is missing");
  if (error != std::errc() || *end || port < 1 || port > 65535)
    return bad("the port must be a number from 1 to 65535");
  return target;
}

Result<std::vector<Outcome>> run_load(const Target& target, const Load& load,
                                      const std::function<void(size_t)>& progress) {
  Result<Addresses> addresses = resolve(target);
  if (!addresses) return std::move(addresses).error();
  Result<const addrinfo*> address = reachable(target, addresses->get());
  if (!address) return std::move(address).error();
  return LoadRun(target, load, **address).run(progress);
}

Result<Outcome> fetch(const Target& target, const Exchange& exchange, TimeNs timeout) {
  Load load;
  load.exchanges = {exchange};
  load.timeout = timeout;
  Result<std::vector<Outcome>> outcomes = run_load(target, load, nullptr);
  if (!outcomes) return std::move(outcomes).error();
  return std::move(outcomes->front());
}

}  // namespace sluice::cli
