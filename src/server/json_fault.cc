#include "server/json_fault.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "text/utf8.h"

namespace sluice {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Recursion is bounded by the depth. Every function returns whether the text is JSON up to at_.
class Scanner {
 public:
  Scanner(std::string_view text, int depth) : text_(text), depth_(depth) {}

  JsonFault run() {
    if (value(0)) {
      space();
    }
    JsonFault fault;
    fault.kind = kind_;
    fault.path = path_;
    const std::string_view before = text_.substr(0, at_);
    fault.line = 1 + size_t(std::count(before.begin(), before.end(), '\n'));
    const size_t newline = before.rfind('\n');
    fault.column = 1 + (newline == std::string_view::npos ? at_ : at_ - newline - 1);
    return fault;
  }

 private:
  bool is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!is(c)) return false;
    ++at_;
    return true;
  }
  void space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  bool value(int level) {
    space();
    if (at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{':
      case '[':
        if (level >= depth_) {
          kind_ = JsonFault::Kind::depth;
          return false;
        }
        return text_[at_++] == '{' ? object(level + 1) : array(level + 1);
      case '"':
        return string(nullptr);
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  bool object(int level) {
    space();
    if (take('}')) return true;
    for (;;) {
      space();
      std::string name;
      if (!is('"') || !string(&name)) return false;
      space();
      if (!take(':')) return false;
      const size_t outer = path_.size();
      if (!name.empty()) path_ += (outer > 0 ? "." : "") + name;
      if (!value(level)) return false;
      path_.resize(outer);
      space();
      if (take('}')) return true;
      if (!take(',')) return false;
    }
  }

  bool array(int level) {
    space();
    if (take(']')) return true;
    for (size_t i = 0;; ++i) {
      const size_t outer = path_.size();
      path_ += "[" + std::to_string(i) + "]";
      if (!value(level)) return false;
      path_.resize(outer);
      space();
      if (take(']')) return true;
      if (!take(',')) return false;
    }
  }

  // `name`: filled with the text if it is a plain name.
  bool string(std::string* name) {
    const size_t begin = ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (name != nullptr) keep_plain(text_.substr(begin, at_ - begin), *name);
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\') {
        if (!escape()) return false;
        continue;
      }
      const Utf8Step step = utf8_step(text_, at_);
      if (!step.valid) {
        kind_ = JsonFault::Kind::utf8;
        return false;
      }
      at_ += step.bytes;
    }
    return false;
  }

  static void keep_plain(std::string_view text, std::string& out) {
    const bool plain =
        text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
          return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
        });
    if (plain) out = text;
  }

  bool escape() {
    ++at_;
    if (at_ >= text_.size()) return false;
    const char c = text_[at_];
    if (c != 'u') {
      if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return false;
      ++at_;
      return true;
    }
    for (int i = 0; i < 4; ++i) {
      ++at_;
      if (at_ >= text_.size() ||
          std::string_view("0123456789abcdefABCDEF").find(text_[at_]) == std::string_view::npos)
        return false;
    }
    ++at_;
    return true;
  }

  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }

  void digits() {
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  }

  bool number() {
    const size_t begin = at_;
    take('-');
    if (at_ >= text_.size() || !is_digit(text_[at_])) return false;
    if (!take('0')) digits();
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (at_ >= text_.size() || !is_digit(text_[at_])) return false;
      digits();
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (at_ >= text_.size() || !is_digit(text_[at_])) return false;
      digits();
    }
    if (fits(text_.substr(begin, at_ - begin), whole)) return true;
    at_ = begin;
    kind_ = JsonFault::Kind::number;
    return false;
  }

  // As the parser reads numbers: 64-bit integers, signed or not, and doubles.
  static bool fits(std::string_view token, bool whole) {
    if (!whole) return std::isfinite(std::strtod(std::string(token).c_str(), nullptr));
    const char* end = token.data() + token.size();
    int64_t small = 0;
    uint64_t large = 0;
    return std::from_chars(token.data(), end, small).ec == std::errc() ||
           (token.front() != '-' && std::from_chars(token.data(), end, large).ec == std::errc());
  }

  const std::string_view text_;
  const int depth_;
  size_t at_ = 0;
  std::string path_;
  JsonFault::Kind kind_ = JsonFault::Kind::syntax;
};

}  // namespace

JsonFault find_json_fault(std::string_view text, int depth) { return Scanner(text, depth).run(); }

}  // namespace sluice
