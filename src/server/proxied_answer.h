// An answer that another server makes: its bytes go to the client as they come, and no faster than it takes
// them. A client that leaves ends the other server's work too.
//
// What fails before the first byte is not told to the client: `fall_back` gets the request back, and the stable
// pool answers it. So it is with what the other server refuses: where the request is wrong, the stable pool
// says so too; a name or a key that only it does not know, or no room, is its own affair. Neither speaks for it
// or against it, nor does a deadline that the client has set. On the connection's thread, but for the three
// calls of UpstreamListener.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http.h"
#include "server/traffic/admission.h"
#include "server/traffic/passage.h"
#include "server/upstream.h"

namespace sluice {

// Of a prompt or an answer, about: what another server makes is not tokenized here, and rates count it so.
inline constexpr size_t kBytesPerToken = 4;

class ProxiedAnswer final : public HttpListener,
                            public UpstreamListener,
                            public std::enable_shared_from_this<ProxiedAnswer> {
 public:
  using FallBack = std::function<void(HttpRequest, Permit)>;
  struct Start {
    std::shared_ptr<HttpExchange> exchange;
    HttpRequest request;
    Passage passage;
    Permit permit;
    FallBack fall_back;
  };
  static void start(Start start, Upstream& upstream, int timeout_ms);

  void on_wake() override {}
  void on_writable() override { resume(); }
  void on_gone(const char*) override;
  void on_shutdown() override;

  void on_head(UpstreamHead head) override;
  void on_body(std::string bytes) override;
  void on_end(std::string error) override;

 private:
  explicit ProxiedAnswer(Start start) : start_(std::move(start)) {}
  void take_head(UpstreamHead head);
  void take_body(const std::string& bytes);
  void take_end(const std::string& error);
  void open_stream();
  void add_told(HttpResponse& response) const;
  void resume();
  void stop();
  void cancel();
  void report(bool failed);

  Start start_;
  std::shared_ptr<UpstreamCall> call_;  // null: over
  UpstreamHead head_;
  std::string whole_;    // of an answer that is not streamed
  TimeNs deadline_ = 0;  // that the client has set; 0: none
  TimeNs began_ = 0, first_byte_ = 0, last_byte_ = 0;
  int events_ = 0;        // of a stream: about a token each
  bool streams_ = false;  // it comes in pieces, and goes on in pieces
  bool waits_ = false;    // for the client, before more is read
};

}  // namespace sluice
