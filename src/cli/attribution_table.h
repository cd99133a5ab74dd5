// A server's own word on where the time of its last requests went, as a table for people.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::cli {

// `json`: what GET /v1/requests/attribution answers. Spans that took nothing are left out.
Result<std::string> attribution_table(std::string_view json);

}  // namespace sluice::cli
