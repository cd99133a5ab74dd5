// Cross-origin requests (the Fetch standard, "CORS protocol"): which pages of other origins may call this
// server from a browser. Keys travel in a header, never in a cookie, so credentials mode is never allowed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http.h"

namespace sluice {

class Cors {
 public:
  // An origin that no browser sends (a path, a slash at its end, no scheme) lets nobody in: refused by its
  // place.
  static Status check(const std::vector<std::string>& origins);

  // Origins as browsers send them ("https://chat.example.com"), or "*" for all; none: no page but our own.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // Headers of an answer to that origin; none where it is not let in, or the request names no origin.
  HttpHeaders headers(const HttpRequest& request) const;
  bool is_preflight(const HttpRequest& request) const;
  // What a preflight is told besides `headers`: `methods` as in Allow.
  HttpHeaders preflight(const HttpRequest& request, std::string_view methods) const;

 private:
  bool lets_in(std::string_view origin) const;
  bool all() const;
  const std::vector<std::string> origins_;
};

}  // namespace sluice
