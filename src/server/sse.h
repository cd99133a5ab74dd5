// Server-sent events as OpenAI's clients read them: one `data:` line and an empty line each.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

inline void append_sse(std::string& out, std::string_view json) {
  out += "data: ";
  out += json;
  out += "\n\n";
}

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace sluice
