// The query of a URL, and the answer where a number in it is none.
#pragma once

#include <optional>
#include <string_view>

#include "server/http_error.h"

namespace sluice {

// A member of the query, as it is written there; unset: it has none of that name.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

// A number of the query, `otherwise` where it has none of that name; unset: it is none from 1 to `most`.
std::optional<int> query_number(std::string_view query, std::string_view name, int otherwise, int most);

// 400, naming both.
HttpResponse bad_number(std::string_view name, int most);

}  // namespace sluice
