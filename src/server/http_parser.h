// Bytes of one HTTP/1.x request → HttpRequest. Boost.Beast's parser behind a few functions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace sluice {

class HttpParser {
 public:
  HttpParser(size_t max_header_bytes, size_t max_body_bytes);
  ~HttpParser();

  // Takes from the front of `bytes` what belongs to this request; returns how much. Stops after the head, so
  // that the caller can look at it before the body is read; call again with the rest.
  size_t take(std::string_view bytes);

  bool head_done() const;                             // the request line and all headers are in
  bool done() const;                                  // the whole request is
  int error_status() const { return error_status_; }  // 0: none; else 400, 413, 431, 501, 505
  const std::string& error() const { return error_; }
  bool expects_continue() const;  // valid once head_done
  bool body_pending() const { return head_done() && !done(); }
  size_t body_bytes() const;  // read so far

  // Moves the request out; only when done.
  HttpRequest release();

 private:
  struct Impl;
  void fail(int status, std::string message);
  void check_head();
  std::unique_ptr<Impl> impl_;
  int error_status_ = 0;
  std::string error_;
};

}  // namespace sluice
