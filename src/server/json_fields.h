// Members of JSON objects whose value may be missing: null stands for it then.
#pragma once

#include <cmath>
#include <string_view>

#include "server/json_writer.h"

namespace sluice {

// null where it is no number.
inline void write_number(JsonWriter& out, const char* name, double value) {
  out.key(name);
  if (std::isfinite(value))
    out.number(value);
  else
    out.null();
}

// A value that is JSON already; null where it is empty.
inline void write_raw(JsonWriter& out, const char* name, std::string_view json) {
  out.key(name);
  if (json.empty())
    out.null();
  else
    out.raw(json);
}

}  // namespace sluice
