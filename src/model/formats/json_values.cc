#include "model/formats/json_values.h"

#include <fmt/format.h>
#include <simdjson.h>

#include "base/json_error.h"
#include "model/formats/shown.h"

namespace sluice {
namespace dom = simdjson::dom;

// Walks the parsed tree once; the depth is bounded by the parser's limit.
struct JsonFlattener {
  JsonValues& out;
  const std::string& path;

  Error twice(const std::string& key) const {
    return {ErrorCode::kCorrupt, fmt::format("{}: key {} stands twice", path, shown(key))};
  }

  Status object(const dom::object& o, const std::string& prefix) {
    for (const dom::key_value_pair& field : o) {
      const std::string key = prefix + std::string(field.key);
      if (field.value.is_object()) {
        if (!out.objects_.insert(key).second || out.values_.contains(key)) return twice(key);
        if (Status s = object(field.value.get_object().value_unsafe(), key + "."); !s) return s;
        continue;
      }
      if (field.value.is_null()) continue;
      JsonValues::Value value;
      convert(field.value, value);
      if (out.objects_.contains(key) || !out.values_.emplace(key, std::move(value)).second) return twice(key);
    }
    return {};
  }

  static void convert(const dom::element& e, JsonValues::Value& value) {
    switch (e.type()) {
      case dom::element_type::INT64:
        value = double(e.get_int64().value_unsafe());
        return;
      case dom::element_type::UINT64:
        value = double(e.get_uint64().value_unsafe());
        return;
      case dom::element_type::DOUBLE:
        value = e.get_double().value_unsafe();
        return;
      case dom::element_type::BOOL:
        value = e.get_bool().value_unsafe();
        return;
      case dom::element_type::STRING:
        value = std::string(e.get_string().value_unsafe());
        return;
      case dom::element_type::ARRAY:
        convert_array(e.get_array().value_unsafe(), value);
        return;
      default:
        return;
    }
  }

  // All strings, or all numbers and bools; anything else is no value that a model's numbers come from.
  static void convert_array(const dom::array& a, JsonValues::Value& value) {
    std::vector<double> numbers;
    std::vector<std::string> strings;
    for (const dom::element e : a) {
      if (e.is_string()) {
        strings.emplace_back(e.get_string().value_unsafe());
      } else if (e.is_bool()) {
        numbers.push_back(e.get_bool().value_unsafe());
      } else if (double number; e.get(number) == simdjson::SUCCESS) {
        numbers.push_back(number);
      } else {
        return;
      }
    }
    if (!strings.empty() && !numbers.empty()) return;
    if (strings.empty())
      value = std::move(numbers);
    else
      value = std::move(strings);
  }
};

Result<JsonValues> JsonValues::parse(std::string_view text, const std::string& path) {
  constexpr size_t kMaxDepth = 64;
  dom::parser parser;
  if (parser.allocate(text.size() + 1, kMaxDepth) != simdjson::SUCCESS) {
    return Error{ErrorCode::kTooLarge, fmt::format("{}: too large to parse ({} bytes)", path, text.size())};
  }
  const simdjson::padded_string padded(text);
  dom::element root;
  if (const auto e = parser.parse(padded).get(root)) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: not valid JSON: {}", path, json_error_words(e))};
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: must hold a JSON object", path)};
  }
  JsonValues values;
  if (Status s = JsonFlattener{values, path}.object(object, ""); !s) return s.error();
  return values;
}

const JsonValues::Value* JsonValues::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

std::optional<double> JsonValues::number(std::string_view key) const {
  const Value* v = find(key);
  return v && std::holds_alternative<double>(*v) ? std::optional(std::get<double>(*v)) : std::nullopt;
}

std::optional<bool> JsonValues::boolean(std::string_view key) const {
  const Value* v = find(key);
  return v && std::holds_alternative<bool>(*v) ? std::optional(std::get<bool>(*v)) : std::nullopt;
}

std::optional<std::string_view> JsonValues::string(std::string_view key) const {
  const Value* v = find(key);
  return v && std::holds_alternative<std::string>(*v)
             ? std::optional<std::string_view>(std::get<std::string>(*v))
             : std::nullopt;
}

std::vector<double> JsonValues::numbers(std::string_view key) const {
  const Value* v = find(key);
  return v && std::holds_alternative<std::vector<double>>(*v) ? std::get<std::vector<double>>(*v)
                                                              : std::vector<double>{};
}

std::vector<std::string_view> JsonValues::strings(std::string_view key) const {
  const Value* v = find(key);
  if (!v || !std::holds_alternative<std::vector<std::string>>(*v)) return {};
  const auto& texts = std::get<std::vector<std::string>>(*v);
  return {texts.begin(), texts.end()};
}

}  // namespace sluice
