// Text as a JSON string, for the files of a folder that this room and quantize write.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// `"text"` with quotes and escapes; `text` is UTF-8.
std::string json_text(std::string_view text);

}  // namespace sluice
