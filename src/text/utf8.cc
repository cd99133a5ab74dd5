#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace sluice {
namespace {

struct Lead {
  uint8_t bytes;                    // 0: no character starts with this byte
  uint8_t second_low, second_high;  // range of the second byte; the others are 80..BF
};

constexpr Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  if (at >= text.size()) return {0, false, false};
  const Lead lead = lead_of(uint8_t(text[at]));
  if (lead.bytes == 0) return {1, false, false};
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (at + i == text.size()) return {i, false, true};
    const uint8_t b = uint8_t(text[at + i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80, high = i == 1 ? lead.second_high : 0xBF;
    if (b < low || b > high) return {i, false, false};
  }
  return {lead.bytes, true, false};
}

bool is_valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + 8 <= text.size() &&
        (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return false;
    at += step.bytes;
  }
  return true;
}

size_t utf8_incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const Utf8Step step = utf8_step(text, text.size() - back);
    if (step.incomplete && step.bytes == back) return back;
  }
  return 0;
}

size_t white_space_at(std::string_view text, size_t at) {
  const auto byte = [text, at](size_t i) { return at + i < text.size() ? uint8_t(text[at + i]) : uint8_t(0); };
  if (byte(0) == ' ' || (byte(0) >= '\t' && byte(0) <= '\r')) return 1;
  if (byte(0) == 0xC2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;
  const uint32_t three = uint32_t(byte(0)) << 16 | uint32_t(byte(1)) << 8 | byte(2);
  const bool space = three == 0xE19A80 || (three >= 0xE28080 && three <= 0xE2808A) || three == 0xE280A8 ||
                     three == 0xE280A9 || three == 0xE280AF || three == 0xE2819F || three == 0xE38080;
  return space ? 3 : 0;
}

size_t white_space_before(std::string_view text, size_t at) {
  for (size_t bytes = 1; bytes <= 3 && bytes <= at; ++bytes) {
    if (white_space_at(text, at - bytes) == bytes) return bytes;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  append_valid_utf8(out, text);
  return out;
}

void append_valid_utf8(std::string& out, std::string_view text) {
  if (is_valid_utf8(text)) {
    out += text;
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    out += step.valid ? text.substr(at, step.bytes) : kReplacementCharacter;
    at += step.bytes;
  }
}

}  // namespace sluice
