#include "server/page.h"

#include <algorithm>

#include "server/http_error.h"

namespace sluice {

namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Calls `item` with each element of a comma-separated header until it returns true.
template <typename Item>
bool any_item(std::string_view list, const Item& item) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (item(trimmed(list.substr(0, comma)))) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

bool takes_gzip(std::string_view accept_encoding) {
  return any_item(accept_encoding, [](std::string_view item) {
    const size_t semicolon = std::min(item.find(';'), item.size());
    const std::string_view weight = trimmed(item.substr(std::min(semicolon + 1, item.size())));
    const bool refused = weight == "q=0" || weight.starts_with("q=0.0");
    return equal_ignoring_case(trimmed(item.substr(0, semicolon)), "gzip") && !refused;
  });
}

}  // namespace

HttpResponse page_response(std::string_view name, const HttpRequest& request) {
  const auto files = page_files();
  const auto file = std::find_if(files.begin(), files.end(), [&](const PageFile& f) { return f.name == name; });
  if (file == files.end())
    return error_response(404, "The page has no such file. GET /routes lists the routes.", {}, "unknown_url");
  const bool gzip = takes_gzip(request.header("accept-encoding"));
  const std::string tag = "\"" + std::string(file->tag) + (gzip ? "-gzip\"" : "\"");
  HttpResponse response;
  response.content_type = file->content_type;
  response.headers = {{"ETag", tag},
                      {"Cache-Control", "no-cache"},  // keep it, but ask whether it is still the one
                      {"Vary", "Accept-Encoding"},
                      {"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  const bool known = any_item(request.header("if-none-match"), [&](std::string_view item) {
    if (item.starts_with("W/")) item.remove_prefix(2);
    return item == tag || item == "*";
  });
  if (known) {
    response.status = 304;
    response.content_type.clear();
    return response;
  }
  if (gzip) response.headers.emplace_back("Content-Encoding", "gzip");
  response.body = gzip ? file->gzipped : file->bytes;
  return response;
}

}  // namespace sluice
