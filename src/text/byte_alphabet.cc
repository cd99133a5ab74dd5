#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace sluice {
namespace {

constexpr bool prints(int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

struct Alphabet {
  std::array<uint16_t, 256> character{};  // of a byte; all are below U+0144
  std::array<int16_t, 0x144> byte{};      // of a character; -1: none
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& b : a.byte) b = -1;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const int character = prints(b) ? b : next++;
    a.character[size_t(b)] = uint16_t(character);
    a.byte[size_t(character)] = int16_t(b);
  }
  return a;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

bool append_bytes_from_alphabet(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t lead = uint8_t(text[i]);
    size_t character = lead;
    if (lead >= 0x80) {
      if ((lead & 0xE0) != 0xC0 || i + 1 == text.size() || (uint8_t(text[i + 1]) & 0xC0) != 0x80) return false;
      character = size_t(lead & 0x1F) << 6 | (uint8_t(text[++i]) & 0x3F);
    }
    if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) return false;
    out += char(kAlphabet.byte[character]);
  }
  return true;
}

std::string alphabet_from_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const uint16_t character = kAlphabet.character[uint8_t(c)];
    if (character < 0x80) {
      out += char(character);
    } else {
      out += char(0xC0 | character >> 6);
      out += char(0x80 | (character & 0x3F));
    }
  }
  return out;
}

}  // namespace sluice
