#include "text/tool_calls.h"

#include <algorithm>

#include "text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxName = 256;
constexpr std::string_view kHermesOpen = "<tool_call>", kHermesClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>", kMistralOpen = "[TOOL_CALLS]",
                           kMistralArgs = "[ARGS]";

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The text of a JSON string without its quotes. Half surrogates and bad escapes become U+FFFD.
std::string unescaped(std::string_view json) {
  std::string out;
  const auto hex = [&](size_t at) {
    int v = 0;
    for (size_t i = at; i < at + 4; ++i) {
      const char c = i < json.size() ? json[i] : 'x';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      v = v * 16 + digit;
    }
    return v;
  };
  const auto append = [&](int point) {
    if (point < 0 || (point >= 0xd800 && point < 0xe000)) point = 0xfffd;
    if (point < 0x80) {
      out += char(point);
    } else if (point < 0x800) {
      out += char(0xc0 | point >> 6), out += char(0x80 | (point & 63));
    } else if (point < 0x10000) {
      out += char(0xe0 | point >> 12), out += char(0x80 | (point >> 6 & 63)), out += char(0x80 | (point & 63));
    } else {
      out += char(0xf0 | point >> 18), out += char(0x80 | (point >> 12 & 63));
      out += char(0x80 | (point >> 6 & 63)), out += char(0x80 | (point & 63));
    }
  };
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '\\' || i + 1 == json.size()) {
      out += json[i];
      continue;
    }
    const char c = json[++i];
    if (c == 'u') {
      int point = hex(i + 1);
      if (point >= 0) i += 4;
      if (point >= 0xd800 && point < 0xdc00 && json.substr(i + 1, 2) == "\\u") {
        const int low = hex(i + 3);
        if (low >= 0xdc00 && low < 0xe000) point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00), i += 6;
      }
      append(point);
    } else {
      out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
    }
  }
  return out;
}

}  // namespace

ToolFormat tool_format_of(std::string_view source) {
  if (source.find(kHermesOpen) != source.npos) return ToolFormat::hermes;
  if (source.find(kMistralOpen) != source.npos) return ToolFormat::mistral;
  if (source.find(kPythonTag) != source.npos || source.find("\"parameters\"") != source.npos)
    return ToolFormat::llama3;
  return ToolFormat::hermes;
}

ToolFormat tool_format_named(std::string_view name, bool& known) {
  known = true;
  if (name == "hermes") return ToolFormat::hermes;
  if (name == "llama3") return ToolFormat::llama3;
  if (name == "mistral") return ToolFormat::mistral;
  known = name == "none";
  return ToolFormat::none;
}

bool is_tool_marker(ToolFormat format, std::string_view text) {
  switch (format) {
    case ToolFormat::none:
      return false;
    case ToolFormat::hermes:
      return text == kHermesOpen || text == kHermesClose;
    case ToolFormat::llama3:
      return text == kPythonTag;
    case ToolFormat::mistral:
      return text == kMistralOpen || text == kMistralArgs;
  }
  return false;
}

ToolCallParser::ToolCallParser(ToolFormat format, bool inside)
    : format_(format), state_(inside ? State::opening : State::text) {}

std::string_view ToolCallParser::marker() const {
  switch (format_) {
    case ToolFormat::hermes:
      return kHermesOpen;
    case ToolFormat::llama3:
      return kPythonTag;
    case ToolFormat::mistral:
      return kMistralOpen;
    case ToolFormat::none:
      break;
  }
  return {};
}

void ToolCallParser::push(std::string_view text, std::string& content, std::vector<ToolCallPiece>& calls) {
  if (format_ == ToolFormat::none) {
    content += text;
    return;
  }
  Out out{content, calls};
  for (const char c : text) byte(c, out);
}

void ToolCallParser::finish(std::string& content, std::vector<ToolCallPiece>&) {
  if (state_ == State::text) {
    // White space after the last call, or before one that did not come, is nobody's.
    const bool blank = std::all_of(held_.begin(), held_.end(), is_space);
    if (calls_ == 0 || !blank) content += held_;
  } else if ((state_ == State::opening || state_ == State::name || state_ == State::object) && !begun_) {
    content += held_;
  }
  held_.clear();
  state_ = State::text;
}

void ToolCallParser::byte(char c, Out& out) {
  switch (state_) {
    case State::text:
      return text_byte(c, out);
    case State::opening:
      return opening_byte(c, out);
    case State::name:
      return name_byte(c, out);
    case State::object:
      return object_byte(c, out);
    case State::after:
      return after_byte(c, out);
  }
}

// White space and what may be a marker wait; the rest is content.
void ToolCallParser::text_byte(char c, Out& out) {
  held_ += c;
  size_t blank = 0;
  while (blank < held_.size() && is_space(held_[blank])) ++blank;
  // Of llama3 an object at the very beginning is a call too.
  if (format_ == ToolFormat::llama3 && !had_text_ && held_.size() == blank + 1 && c == '{') {
    state_ = State::opening;
    held_.pop_back();
    return opening_byte(c, out);
  }
  for (;;) {
    blank = 0;
    while (blank < held_.size() && is_space(held_[blank])) ++blank;
    const std::string_view rest = std::string_view(held_).substr(blank);
    if (rest == marker()) {
      state_ = State::opening;
      return;
    }
    if (marker().starts_with(rest)) return;
    // No marker begins here: the first byte after the white space is text, and the search goes on behind it.
    out.content.append(held_, 0, blank + 1);
    had_text_ = true;
    held_.erase(0, blank + 1);
  }
}

// Between the marker and the call.
void ToolCallParser::opening_byte(char c, Out& out) {
  held_ += c;
  if (is_space(c)) return;
  if (c == '{') {
    begin_object();
    return object_byte(c, out);
  }
  if (format_ == ToolFormat::mistral && c == '[' && !in_array_) {
    in_array_ = true;
    return;
  }
  if (format_ == ToolFormat::mistral && !in_array_) {
    begin_object();
    bare_ = true;
    state_ = State::name;
    name_ = c;
    return;
  }
  no_call(out);
}

// [TOOL_CALLS]name[ARGS]{…}
void ToolCallParser::name_byte(char c, Out& out) {
  held_ += c;
  if (c == '{') {
    while (!name_.empty() && is_space(name_.back())) name_.pop_back();
    if (name_.ends_with(kMistralArgs)) name_.resize(name_.size() - kMistralArgs.size());
    named_ = !name_.empty() && is_valid_utf8(name_);
    if (!named_) return no_call(out);
    state_ = State::object;
    member_ = Member::arguments;
    has_arguments_ = true;
    begin_call(out);
    depth_ = 1;
    return give_arguments("{", out);
  }
  name_ += c;
  if (name_.size() > kMaxName || c == '\n') no_call(out);
}

void ToolCallParser::begin_object() {
  state_ = State::object;
  depth_ = 0;
  in_string_ = escaped_ = named_ = has_arguments_ = value_begun_ = as_text_ = begun_ = bare_ = false;
  member_ = Member::none;
  key_.clear(), name_.clear(), arguments_.clear();
}

void ToolCallParser::object_byte(char c, Out& out) {
  if (depth_ > 0 && !begun_) held_ += c;  // the opening brace is held already
  const bool was_string = in_string_;
  if (in_string_) {
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"')
      in_string_ = false;
  } else if (c == '"') {
    in_string_ = true;
  }
  const bool structural = !was_string && c != '"';
  if (bare_) {
    give_arguments(std::string_view(&c, 1), out);
    if (structural) depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (depth_ == 0) end_call(out);
    return;
  }
  if (structural && (c == '{' || c == '[') && ++depth_ == 1) return;
  if (structural && (c == '}' || c == ']') && --depth_ == 0) {
    end_member(out);
    if (named_) return end_call(out);
    return no_call(out);
  }
  if (depth_ == 1 && structural && c == ',') return end_member(out);
  member_byte(c, out);
}

// A byte of a member of the call's object that is neither its comma nor the object's end.
void ToolCallParser::member_byte(char c, Out& out) {
  switch (member_) {
    case Member::none:
      if (c == '"') member_ = Member::key, key_.clear();
      return;
    case Member::key:
      if (!in_string_) {
        member_ = Member::colon;
      } else if (key_.size() <= kMaxName) {
        key_ += c;
      }
      return;
    case Member::colon:
      if (c != ':') return;
      member_ = Member::other;
      if (key_ == "name" && !named_) member_ = Member::name;
      if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
        member_ = Member::arguments;
        has_arguments_ = true;
        if (named_) begin_call(out);
      }
      return;
    case Member::name:
      if (name_.size() <= kMaxName && !(name_.empty() && is_space(c))) name_ += c;
      return;
    case Member::arguments:
      if (is_space(c) && depth_ == 1 && !in_string_) return;  // around the value
      if (!value_begun_) as_text_ = c == '"';                 // an object, or the text of one
      value_begun_ = true;
      if (begun_ && !as_text_)
        give_arguments(std::string_view(&c, 1), out);
      else
        arguments_ += c;
      return;
    case Member::other:
      return;
  }
}

void ToolCallParser::end_member(Out& out) {
  if (member_ == Member::name) {
    while (!name_.empty() && is_space(name_.back())) name_.pop_back();
    const bool text =
        name_.size() > 2 && name_.size() <= kMaxName && name_.front() == '"' && name_.back() == '"';
    name_ = text ? unescaped(std::string_view(name_).substr(1, name_.size() - 2)) : "";
    named_ = !name_.empty() && is_valid_utf8(name_);
    if (named_ && has_arguments_) begin_call(out);
  }
  member_ = Member::none;
}

void ToolCallParser::begin_call(Out& out) {
  if (begun_) return;
  begun_ = true;
  held_.clear();
  out.calls.push_back({calls_++, name_, "", false, out.content.size()});
  if (!as_text_ && !arguments_.empty()) {
    give_arguments(arguments_, out);
    arguments_.clear();
  }
}

void ToolCallParser::give_arguments(std::string_view text, Out& out) {
  if (out.calls.empty() || out.calls.back().index != calls_ - 1 || !out.calls.back().name.empty())
    out.calls.push_back({calls_ - 1, "", "", false, out.content.size()});
  out.calls.back().arguments += text;
}

void ToolCallParser::end_call(Out& out) {
  begin_call(out);
  if (as_text_) {
    while (!arguments_.empty() && is_space(arguments_.back())) arguments_.pop_back();
    const bool text = arguments_.size() >= 2 && arguments_.back() == '"';
    give_arguments(text ? unescaped(std::string_view(arguments_).substr(1, arguments_.size() - 2)) : "{}", out);
  } else if (!has_arguments_) {
    give_arguments("{}", out);
  }
  give_arguments("", out);
  out.calls.back().complete = true;
  ++whole_calls_;
  held_.clear();
  begun_ = false;
  state_ = State::after;
}

// Between calls: closing marks, separators, or text again.
void ToolCallParser::after_byte(char c, Out& out) {
  held_ += c;
  if (format_ == ToolFormat::hermes) {
    size_t blank = 0;
    while (blank < held_.size() && is_space(held_[blank])) ++blank;
    const std::string_view rest = std::string_view(held_).substr(blank);
    if (kHermesClose.starts_with(rest)) {
      if (rest == kHermesClose) held_.clear(), state_ = State::text;
      return;
    }
    // The mark was forgotten: what follows is read as if it had been there.
    std::string again;
    again.swap(held_);
    state_ = State::text;
    for (const char b : again) byte(b, out);
    return;
  }
  if (is_space(c)) return;
  if (format_ == ToolFormat::mistral && in_array_ && (c == ',' || c == ']')) {
    held_.clear();
    state_ = c == ',' ? State::opening : State::text;
    in_array_ = c == ',';
    return;
  }
  if (format_ == ToolFormat::llama3 && (c == ';' || c == ',')) {
    held_.clear();
    state_ = State::opening;
    return;
  }
  if (format_ == ToolFormat::llama3 && c == '{') {
    held_.pop_back();
    state_ = State::opening;
    return opening_byte(c, out);
  }
  std::string again;
  again.swap(held_);
  state_ = State::text;
  in_array_ = false;
  for (const char b : again) byte(b, out);
}

// What was held as a call is text after all. The first byte of it cannot begin a marker again: it did, and was
// none.
void ToolCallParser::no_call(Out& out) {
  out.content += held_;
  held_.clear();
  had_text_ = true;
  in_array_ = false;
  state_ = State::text;
}

}  // namespace sluice
