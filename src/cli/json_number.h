// A number in what a server answered.
#pragma once

#include <optional>
#include <string_view>

#include "server/json.h"

namespace sluice::cli {

// 0 where there is no object, no such member, or no number.
inline double number_of(std::optional<JsonView> object, std::string_view name) {
  const auto value = object ? object->find(name) : std::nullopt;
  return value ? value->number().value_or(0) : 0;
}

}  // namespace sluice::cli
