#include "server/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace sluice {

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.starts_with(name) && pair.size() > name.size() && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
  }
  return {};
}

std::optional<int> query_number(std::string_view query, std::string_view name, int otherwise, int most) {
  const auto text = query_value(query, name);
  if (!text) return otherwise;
  int value = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), value);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text->data() + text->size();
  return whole && value >= 1 && value <= most ? std::optional(value) : std::nullopt;
}

HttpResponse bad_number(std::string_view name, int most) {
  return error_response(400, fmt::format("{} must be an integer from 1 to {}.", name, most), name);
}

}  // namespace sluice
