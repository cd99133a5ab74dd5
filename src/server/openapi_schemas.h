// What requests and answers look like, for /openapi.json: JSON Schemas as text.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace sluice::openapi {

extern const std::string_view kTokenizeRequest, kDeleted;
// Members of components.schemas.
std::string schemas();

}  // namespace sluice::openapi
