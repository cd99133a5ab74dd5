// Another server that answers in place of this one: HTTP/1.1 in the clear, a connection for each request.
//
// One thread of its own waits for all of them; listeners are called on it and must not block. Boost is in
// upstream.cc only.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "server/http.h"

namespace sluice {

struct UpstreamHead {
  int status = 0;
  std::string content_type;
  HttpHeaders headers;
  bool sized = false;  // its body has a length that is told; else it is a stream
};

// In this order: on_head once, on_body any number of times, on_end once; on_end alone where it failed before.
class UpstreamListener {
 public:
  virtual ~UpstreamListener() = default;
  // Nothing more is read until UpstreamCall::resume, after this and after each on_body.
  virtual void on_head(UpstreamHead head) = 0;
  virtual void on_body(std::string bytes) = 0;
  virtual void on_end(std::string error) = 0;  // empty: it is complete
};

// Any thread.
class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  virtual void resume() = 0;
  // Closes the connection, which is how the other server hears that nobody listens. No call comes after it but
  // one that is under way.
  virtual void cancel() = 0;
};

class Upstream {
 public:
  // `url`: http://HOST[:PORT]. Errors: kInvalidArgument.
  static Result<std::unique_ptr<Upstream>> create(const std::string& url);
  virtual ~Upstream() = default;  // cancels what is under way

  // `timeout_ms`: without a byte. The request's headers go along but for those of its connection.
  virtual std::shared_ptr<UpstreamCall> start(const HttpRequest& request, int timeout_ms,
                                              std::shared_ptr<UpstreamListener> listener) = 0;
  // Nothing is under way.
  virtual bool idle() = 0;
};

// What create takes, without making it.
Status check_upstream_url(const std::string& url);

}  // namespace sluice
