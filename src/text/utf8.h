// UTF-8 as The Unicode Standard, table 3-7, defines it: no surrogates, no overlong forms, nothing above
// U+10FFFF. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

// One step through text: a whole character, or a maximal ill-formed part (what one U+FFFD stands for).
struct Utf8Step {
  size_t bytes;     // 1..4, never past the end of the text; 0 only when at == text.size()
  bool valid;       // a whole character
  bool incomplete;  // not valid, but only because the text ends: more bytes could complete it
};
Utf8Step utf8_step(std::string_view text, size_t at);

bool is_valid_utf8(std::string_view text);

// Bytes at the end of text that begin a character which further bytes could complete: 0..3.
size_t utf8_incomplete_tail(std::string_view text);

// Every maximal ill-formed part becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
void append_valid_utf8(std::string& out, std::string_view text);  // the same, at the end of `out`

// Unicode's White_Space: bytes of the white space character that begins at text[at], or ends before it; 0: none
// there.
size_t white_space_at(std::string_view text, size_t at);
size_t white_space_before(std::string_view text, size_t at);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace sluice
