// What of a token's text is control characters.
#pragma once

#include <cstdint>

#include "text/tokenizer.h"

namespace sluice {

struct TokenText {
  int chars = 0, control = 0;
};

// Tabs and ends of lines are text. A control token counts as one character, also where it is not shown; one
// that ends the turn does not.
inline TokenText text_seen(const Tokenizer& tokenizer, int32_t id) {
  if (tokenizer.is_control(id)) return tokenizer.end_of_generation(id) ? TokenText{} : TokenText{1, 1};
  TokenText seen;
  for (const char c : tokenizer.piece(id)) {
    const auto byte = uint8_t(c);
    seen.chars += (byte & 0xc0) != 0x80;
    seen.control += byte == 0x7f || (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r');
  }
  return seen;
}

}  // namespace sluice
