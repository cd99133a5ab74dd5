#include "text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>

#include "text/utf8.h"

namespace sluice {
namespace {

using Kind = NormalizeStep::Kind;
constexpr size_t kMaxReplacedBytes = 64 << 20;

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (uint8_t(c) >= 0x80) return false;
  }
  return true;
}

void apply_form(Kind kind, std::string& text) {
  if (is_ascii(text)) return;
  int options = UTF8PROC_STABLE;
  options |= kind == Kind::kNfc || kind == Kind::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (kind == Kind::kNfkc || kind == Kind::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             utf8proc_ssize_t(text.size()), &out, utf8proc_option_t(options));
  if (size >= 0) text.assign(reinterpret_cast<const char*>(out), size_t(size));
  std::free(out);
}

void apply_lowercase(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    utf8proc_int32_t code = 0;
    if (step.valid) {
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       utf8proc_ssize_t(step.bytes), &code);
      utf8proc_uint8_t bytes[4];
      out.append(reinterpret_cast<const char*>(bytes),
                 size_t(utf8proc_encode_char(utf8proc_tolower(code), bytes)));
    } else {
      out.append(text, at, step.bytes);
    }
    at += step.bytes;
  }
  text.swap(out);
}

void apply_replace(const NormalizeStep& step, std::string& text) {
  if (step.pattern.empty() || text.find(step.pattern) == text.npos) return;
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(step.pattern, at)) != text.npos; at = hit + step.pattern.size()) {
    out.append(text, at, hit - at);
    out += step.content;
    if (out.size() > kMaxReplacedBytes) return;
  }
  out.append(text, at);
  text.swap(out);
}

void apply_regex(const NormalizeStep& step, const Regex& regex, std::string& text) {
  if (!is_valid_utf8(text)) return;
  std::string out;
  size_t at = 0, from = 0;
  TextSpan match;
  while (from <= text.size() && regex.find(text, from, match)) {
    if (match.begin == match.end) {
      ++from;
      while (from < text.size() && (uint8_t(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    out.append(text, at, match.begin - at);
    out += step.content;
    if (out.size() > kMaxReplacedBytes) return;
    at = from = match.end;
  }
  out.append(text, at);
  text.swap(out);
}

void apply_strip(const NormalizeStep& step, std::string& text) {
  const bool left = step.content.find('l') != step.content.npos,
             right = step.content.find('r') != step.content.npos;
  size_t begin = 0, end = text.size();
  while (left && white_space_at(text, begin) > 0) begin += white_space_at(text, begin);
  while (right && end > begin && white_space_before(text, end) > 0) end -= white_space_before(text, end);
  text = text.substr(begin, end - begin);
}

// SentencePiece's remove_extra_whitespaces: none at the ends, one at a time within.
void collapse_spaces(std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  text.swap(out);
}

}  // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizeStep>& steps) {
  if (steps.size() > 32) return Error{ErrorCode::kTooLarge, "more than 32 normalizer steps"};
  Normalizer out;
  for (const NormalizeStep& what : steps) {
    Step step{what, {}, {}};
    if (what.kind == Kind::kReplaceRegex) {
      Result<Regex> regex = Regex::create(what.pattern);
      if (!regex) return regex.error();
      step.regex = std::move(*regex);
    }
    if (what.kind == Kind::kPrecompiled) {
      uint32_t bytes = 0;
      if (what.pattern.size() >= 4) std::memcpy(&bytes, what.pattern.data(), 4);
      if (bytes == 0 || bytes % 4 != 0 || bytes > what.pattern.size() - 4) {
        return Error{ErrorCode::kCorrupt, "precompiled normalizer map is cut short"};
      }
      step.trie.resize(bytes / 4);
      std::memcpy(step.trie.data(), what.pattern.data() + 4, bytes);
      step.what.pattern.erase(0, 4 + size_t(bytes));
      step.what.pattern.push_back('\0');
    }
    out.steps_.push_back(std::move(step));
  }
  return out;
}

// The longest key that begins at each character is replaced by its string. Units are those of Darts-clone: bit
// 8 says that a leaf hangs below, bits 10.. with bit 9 as exponent are the offset, a leaf's low 31 bits its
// value.
void Normalizer::apply_precompiled(const Step& step, std::string& text) {
  const std::vector<uint32_t>& units = step.trie;
  const std::string& strings = step.what.pattern;
  auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t node = offset(units[0]), matched = 0;
    uint32_t value = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const uint8_t byte = uint8_t(text[i]);
      node ^= byte;
      if (byte == 0 || node >= units.size() || (units[node] & 0x800000FFu) != byte) break;
      const uint32_t unit = units[node];
      node ^= offset(unit);
      if ((unit >> 8 & 1) && node < units.size()) {
        matched = i + 1 - at;
        value = units[node] & 0x7FFFFFFFu;
      }
    }
    if (matched > 0 && value < strings.size()) {
      out += strings.c_str() + value;
    } else {
      matched = std::max<size_t>(utf8_step(text, at).bytes, 1);
      out.append(text, at, matched);
    }
    at += matched;
    if (out.size() > kMaxReplacedBytes) return;
  }
  text.swap(out);
}

void Normalizer::apply(std::string& text) const {
  for (const Step& step : steps_) {
    switch (step.what.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd:
        apply_form(step.what.kind, text);
        break;
      case Kind::kLowercase:
        apply_lowercase(text);
        break;
      case Kind::kReplace:
        apply_replace(step.what, text);
        break;
      case Kind::kReplaceRegex:
        apply_regex(step.what, *step.regex, text);
        break;
      case Kind::kStrip:
        apply_strip(step.what, text);
        break;
      case Kind::kCollapseSpaces:
        collapse_spaces(text);
        break;
      case Kind::kPrecompiled:
        apply_precompiled(step, text);
        break;
    }
  }
}

}  // namespace sluice
