// What handlers see of HTTP: a request, and an exchange that takes its answer. No Boost here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace sluice {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // as sent: "GET"
  std::string path;     // percent-decoded, without query
  std::string query;    // after '?', not decoded
  HttpHeaders headers;  // as sent, in order
  std::string body;
  int version = 11;  // 10 or 11
  bool keep_alive = true;
  TimeNs began = 0;     // when its first byte was read
  TimeNs received = 0;  // when the last byte of its body was read

  // First header of that name, case-insensitive; empty: none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // besides Content-Type, Content-Length, Connection, Date
  std::string body;
  std::string error{};    // of an error: its message alone, for APIs that word errors in a shape of their own
  bool own_rate = false;  // of a 429: the client's own rate is used up, the server may be idle
};

// Hears of what happens to an exchange. All calls come on the connection's thread.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  virtual void on_wake() = 0;      // some thread called HttpExchange::wake
  virtual void on_writable() = 0;  // unsent() fell below limits::kStreamHighWater again
  virtual void on_sent() {}        // the answer has ended and its last byte was handed to the socket
  // Nothing can be sent any more: the client left ("client_disconnect"), or took nothing for too long
  // ("write_timeout"). Also in place of on_sent.
  virtual void on_gone(const char* why) = 0;
  virtual void on_shutdown() = 0;  // the server's drain deadline has passed: answer with an error now
};

// One request being answered. Methods other than wake, post, gone and request_id belong to the connection's
// thread.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Any thread. `wake` calls the listener's on_wake soon; many wakes may become one call, and one loop turn
  // serves all connections that were woken meanwhile. It takes no lock unless the thread sleeps.
  virtual void wake() = 0;
  virtual void post(std::function<void()> work) = 0;

  // Any thread: whether nobody waits for the answer any more.
  virtual bool gone() const = 0;
  // Kept until the answer has been sent or the client is gone. Null while nothing waits.
  virtual void listen(std::shared_ptr<HttpListener> listener) = 0;

  // A header of this exchange's answer, whichever it will be. Names and values are the caller's to clean.
  virtual void add_header(std::string_view name, std::string_view value) = 0;

  // The whole answer. Does nothing when the client is gone.
  virtual void respond(HttpResponse response) = 0;

  // A streamed answer: head, then frames, then end. What is to be sent next is appended to `frames`, which are
  // sent from where they lie; `flush` sends all of it in one system call, as one HTTP chunk. The reference is
  // valid until the next flush or end.
  virtual void begin(HttpResponse head) = 0;
  virtual std::string& frames() = 0;
  void write(std::string_view bytes) { frames() += bytes; }
  virtual void flush() = 0;
  virtual size_t unsent() const = 0;
  // `complete` false: the connection is closed without the last chunk, so that the client knows the answer is
  // cut.
  virtual void end(bool complete) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // On the connection's thread. Must not block; must see to it that `exchange` gets an answer.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // The answer for a request that broke HTTP itself (400, 408, 413, 431): body and content type.
  virtual HttpResponse protocol_error(int status, std::string_view message) = 0;
  // On a connection's thread: a turn of its loop has ended in which `handle` or work that was posted ran. What
  // is done once for many requests belongs here.
  virtual void turn_ended() {}
  // An answer's status, once; 0: the client left before the answer had ended.
  virtual void answered(int status) = 0;
};

bool equal_ignoring_case(std::string_view a, std::string_view b);
const char* reason_phrase(int status);

}  // namespace sluice
