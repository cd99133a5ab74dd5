// Writing JSON by appending to a string. The output is always valid JSON and valid UTF-8: ill-formed bytes
// become U+FFFD, numbers that JSON cannot say become the nearest it can.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// `"text"` with quotes and escapes.
void append_json_string(std::string& out, std::string_view text);
// The inside of such a string, without the quotes.
void append_json_escaped(std::string& out, std::string_view text);
// Shortest text that reads back as the same float. NaN and -inf become -9999, +inf 9999 (as log-probabilities
// mean it).
void append_json_number(std::string& out, float value);
void append_json_number(std::string& out, double value);

// Puts the commas. Members and elements are written in order; keys must be unique, which the caller sees to.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(int64_t value);
  JsonWriter& number(double value);
  JsonWriter& number(float value);
  // Rounded to three decimals, which it always has: a quarter of the work where the rest is noise, as in times.
  JsonWriter& thousandths(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  JsonWriter& raw(std::string_view json);  // a whole value, already JSON
  JsonWriter& integers(std::span<const int32_t> values);

 private:
  JsonWriter& open(char c);
  JsonWriter& close(char c);
  void separate();

  std::string& out_;
  bool first_ = true;  // nothing written yet at this level, or a key has just been
};

}  // namespace sluice
