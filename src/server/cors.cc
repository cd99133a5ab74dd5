#include "server/cors.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

Status Cors::check(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                       origin.find_first_of("/?#@ *,", scheme + 3) == std::string::npos;
    if (origin != "*" && origin != "null" && !whole)
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("server.cors_origins: expected \"*\" or SCHEME://HOST[:PORT] with nothing behind it, "
                      "as browsers send it, got '{}'",
                      origin),
          ""};
  }
  return {};
}

bool Cors::all() const { return std::find(origins_.begin(), origins_.end(), "*") != origins_.end(); }

bool Cors::lets_in(std::string_view origin) const {
  return !origin.empty() && (all() || std::find(origins_.begin(), origins_.end(), origin) != origins_.end());
}

HttpHeaders Cors::headers(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  const std::string_view origin = request.header("origin");
  HttpHeaders out;
  if (!all()) out.emplace_back("Vary", "Origin");
  if (!lets_in(origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", all() ? std::string("*") : std::string(origin));
  out.emplace_back("Access-Control-Expose-Headers",
                   "X-Request-Id, Request-Id, Retry-After, X-Sluice-Ignored, X-Sluice-Degraded, X-Sluice-Pool, "
                   "X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests, "
                   "X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Tokens");
  return out;
}

bool Cors::is_preflight(const HttpRequest& request) const {
  return request.method == "OPTIONS" && lets_in(request.header("origin")) &&
         !request.header("access-control-request-method").empty();
}

HttpHeaders Cors::preflight(const HttpRequest& request, std::string_view methods) const {
  // The names asked for are said back: "*" would not stand for Authorization.
  std::string names;
  for (const char c : request.header("access-control-request-headers")) {
    const bool token = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == ',' || c == ' ';
    if (token && names.size() < 1024) names += c;
  }
  HttpHeaders out = {{"Access-Control-Allow-Methods", std::string(methods)}, {"Access-Control-Max-Age", "600"}};
  if (!names.empty()) out.emplace_back("Access-Control-Allow-Headers", names);
  return out;
}

}  // namespace sluice
