#include "quantize/overlap.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>
#include <unordered_set>

namespace sluice::quantize {
namespace {

// Beyond ASCII each character is a word: many languages are written without spaces.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  bool inside = false;
  for (const char c : text) {
    const auto byte = uint8_t(c);
    if (byte >= 0x80) {
      if (byte >= 0xc0 || out.empty()) out.emplace_back();
      out.back() += c;
      inside = false;
      continue;
    }
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space && !inside) out.emplace_back();
    if (!space) out.back() += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    inside = !space;
  }
  return out;
}

std::string passage_at(const std::vector<std::string>& words, size_t first) {
  std::string out;
  for (size_t i = first; i < first + kPassageWords; i++) out += (i > first ? " " : "") + words[i];
  return out;
}

uint64_t hash_of(std::string_view passage) { return XXH3_64bits(passage.data(), passage.size()); }

}  // namespace

uint64_t whole_file(std::string_view bytes) { return hash_of(bytes); }

std::vector<uint64_t> passages(std::string_view text) {
  const std::vector<std::string> words = words_of(text);
  std::vector<uint64_t> out;
  for (size_t i = 0; i + kPassageWords <= words.size(); i += kPassageWords)
    out.push_back(hash_of(passage_at(words, i)));
  return out;
}

std::optional<std::string> shared_passage(std::string_view text, std::span<const uint64_t> known) {
  const std::unordered_set<uint64_t> set(known.begin(), known.end());
  if (set.contains(whole_file(text))) return std::string(text.substr(0, 200));
  const std::vector<std::string> words = words_of(text);
  for (size_t i = 0; i + kPassageWords <= words.size(); i++)
    if (std::string passage = passage_at(words, i); set.contains(hash_of(passage))) return passage;
  return {};
}

std::string passages_text(std::span<const uint64_t> hashes) {
  std::string out;
  for (const uint64_t h : hashes) out += fmt::format("{:016x}\n", h);
  return out;
}

std::vector<uint64_t> parse_passages(std::string_view text) {
  std::vector<uint64_t> out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    uint64_t h = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), h, 16);
    if (error == std::errc() && line.size() == 16 && end == line.data() + line.size()) out.push_back(h);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return out;
}

}  // namespace sluice::quantize
