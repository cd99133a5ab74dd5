#include "model/formats/shown.h"

#include <fmt/format.h>

namespace sluice {

std::string shown(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string out = "'";
  for (unsigned char c : text.substr(0, kMaxBytes)) {
    if (c < 0x20 || c >= 0x7f || c == '\'' || c == '\\') {
      out += fmt::format("\\x{:02x}", int(c));
    } else {
      out += char(c);
    }
  }
  out += text.size() > kMaxBytes ? "…'" : "'";
  return out;
}

std::string mistaken_file(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size() < 64 ? bytes.size() : 64);
  if (text.starts_with("version https://git-lfs")) {
    return "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder";
  }
  if (text.starts_with("<!DOCTYPE") || text.starts_with("<!doctype") || text.starts_with("<html")) {
    return "an HTML page, not the file itself; download it again";
  }
  if (text.starts_with("PK\x03\x04"))
    return "a zip archive; unpack it, or convert a PyTorch checkpoint to safetensors";
  return "";
}

}  // namespace sluice
