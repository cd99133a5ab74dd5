// A JSON file's values, flattened: {"a": {"b": 1}} has the key "a.b". For config.json.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/formats/key_values.h"

namespace sluice {

// What a simdjson::error_code means, in words that end a sentence.
const char* json_error_words(int error);

// Owns copies of what it holds. Nulls count as absent, `has` knows arrays of anything but numbers, bools or
// strings though no lookup answers them; a key that stands twice, nesting beyond 64 and text that is not UTF-8
// are refused. Immutable.
class JsonValues final : public KeyValues {
 public:
  // `path` serves messages only.
  static Result<JsonValues> parse(std::string_view text, const std::string& path);

  bool has(std::string_view key) const override { return find(key) != nullptr || objects_.contains(key); }
  bool is_section(std::string_view key) const override { return objects_.contains(key); }
  std::optional<double> number(std::string_view key) const override;
  std::optional<bool> boolean(std::string_view key) const override;
  std::optional<std::string_view> string(std::string_view key) const override;
  std::vector<double> numbers(std::string_view key) const override;
  std::vector<std::string_view> strings(std::string_view key) const override;

 private:
  friend struct JsonFlattener;
  // monostate: there, but nothing that a model's numbers come from.
  using Value =
      std::variant<std::monostate, double, bool, std::string, std::vector<double>, std::vector<std::string>>;
  const Value* find(std::string_view key) const;
  std::map<std::string, Value, std::less<>> values_;
  std::set<std::string, std::less<>> objects_;
};

}  // namespace sluice
