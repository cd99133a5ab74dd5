// Where a text that is refused as JSON stops being it: for the 400's words, so it runs on that way only. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

struct JsonFault {
  enum class Kind { syntax, number, utf8, depth } kind = Kind::syntax;
  size_t line = 1, column = 1;  // from 1; columns in bytes
  // The member it lies in, "logit_bias.73" or "prompt[2]", as far as names are plain; empty: none.
  std::string path;
};

// The first fault; `depth`: most levels of arrays and objects. A text without fault gives one at its end.
JsonFault find_json_fault(std::string_view text, int depth);

}  // namespace sluice
