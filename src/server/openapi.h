// The document at /openapi.json: OpenAPI 3.1, what every route takes and answers.
#pragma once

#include <string_view>

namespace sluice {

std::string_view openapi_document();

}  // namespace sluice
