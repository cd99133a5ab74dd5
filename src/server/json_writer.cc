#include "server/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace sluice {

namespace {

// 0: as it is; 'u': \u00XX; else the letter after the backslash; 1: a byte of a longer character.
constexpr auto kEscapes = [] {
  std::array<char, 256> t{};
  for (int i = 0; i < 0x20; ++i) t[size_t(i)] = 'u';
  t['"'] = '"';
  t['\\'] = '\\';
  t['\n'] = 'n';
  t['\r'] = 'r';
  t['\t'] = 't';
  t['\b'] = 'b';
  t['\f'] = 'f';
  t[0x7f] = 'u';
  for (int i = 0x80; i < 0x100; ++i) t[size_t(i)] = 1;
  return t;
}();

template <typename T>
void append_finite(std::string& out, T value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, size_t(end - text));
}

template <typename T>
void append_number(std::string& out, T value) {
  if (std::isfinite(value))
    append_finite(out, value);
  else
    out += value > 0 ? "9999.0" : "-9999.0";
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  size_t from = 0;
  size_t at = 0;
  while (at < text.size()) {
    const char escape = kEscapes[static_cast<unsigned char>(text[at])];
    if (escape == 0) {
      ++at;
      continue;
    }
    if (escape == 1) {
      const Utf8Step step = utf8_step(text, at);
      if (!step.valid) {
        out.append(text, from, at - from);
        out += kReplacementCharacter;
        from = at + step.bytes;
      }
      at += step.bytes;
      continue;
    }
    out.append(text, from, at - from);
    out += '\\';
    out += escape;
    if (escape == 'u') {
      static constexpr char kHex[] = "0123456789abcdef";
      out += "00";
      out += kHex[static_cast<unsigned char>(text[at]) >> 4];
      out += kHex[static_cast<unsigned char>(text[at]) & 15];
    }
    from = ++at;
  }
  out.append(text, from, at - from);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_number(std::string& out, float value) { append_number(out, value); }
void append_json_number(std::string& out, double value) { append_number(out, value); }

void JsonWriter::separate() {
  if (!first_) out_ += ',';
  first_ = false;
}

JsonWriter& JsonWriter::open(char c) {
  separate();
  out_ += c;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char c) {
  out_ += c;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  separate();
  append_finite(out_, value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  separate();
  append_json_number(out_, value);
  return *this;
}

JsonWriter& JsonWriter::number(float value) {
  separate();
  append_json_number(out_, value);
  return *this;
}

JsonWriter& JsonWriter::thousandths(double value) {
  constexpr double kMost = 1e15;  // beyond it a double has no three decimals
  if (!(std::abs(value) < kMost)) return number(value);
  separate();
  const int64_t all = std::llround(value * 1000), whole = all / 1000, rest = std::abs(all % 1000);
  if (all < 0 && whole == 0) out_ += '-';
  append_finite(out_, whole);
  const char decimals[] = {'.', char('0' + rest / 100), char('0' + rest / 10 % 10), char('0' + rest % 10)};
  out_.append(decimals, sizeof decimals);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

JsonWriter& JsonWriter::integers(std::span<const int32_t> values) {
  begin_array();
  for (int32_t v : values) integer(v);
  return end_array();
}

}  // namespace sluice
