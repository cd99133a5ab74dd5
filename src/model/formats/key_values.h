// Named numbers of a model file, whichever format they come from: a GGUF header or a config.json. Families read
// these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Lookups answer nullopt (or empty) where the key is absent or null; `has` tells a key of another type from an
// absent one. Integers beyond 2^53 do not matter to any key that is read as a number.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual bool has(std::string_view key) const = 0;
  // Whether the key holds keys of its own, as an object in JSON does.
  virtual bool is_section(std::string_view) const { return false; }
  virtual std::optional<double> number(std::string_view key) const = 0;
  virtual std::optional<bool> boolean(std::string_view key) const = 0;
  virtual std::optional<std::string_view> string(std::string_view key) const = 0;
  virtual std::vector<double> numbers(std::string_view key) const = 0;  // array of numbers or bools
  virtual std::vector<std::string_view> strings(
      std::string_view key) const = 0;  // array of strings, views of the file
};

}  // namespace sluice
