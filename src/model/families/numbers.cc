#include "model/families/numbers.h"

#include <fmt/format.h>

#include <cmath>

#include "model/formats/shown.h"

namespace sluice {

void Numbers::complain(ErrorCode code, std::string_view key, const std::string& why) {
  if (!error_) error_ = Error{code, fmt::format("{}: key {}: {}", path_, shown(full(key)), why)};
}

void Numbers::refuse(std::string_view key, const std::string& why) {
  complain(ErrorCode::kUnsupported, key, why);
}

bool Numbers::section(std::string_view key) {
  if (!has(key)) return false;
  if (!values_.is_section(full(key))) complain(ErrorCode::kCorrupt, key, "must be an object, or null");
  return values_.is_section(full(key));
}

namespace {

bool may_differ_by_layer(std::string_view key) {
  return key == "attention.head_count" || key == "attention.head_count_kv" || key == "feed_forward_length";
}

}  // namespace

std::optional<double> Numbers::value(std::string_view key, double low, double high, bool required) {
  std::optional<double> v = values_.number(full(key));
  if (!v && may_differ_by_layer(key)) {
    const std::vector<double> each = values_.numbers(full(key));
    for (double x : each) {
      if (x != each[0]) {
        refuse(key, "differs from layer to layer, which is not supported");
        return low;
      }
    }
    if (!each.empty()) v = each[0];
  }
  if (!v) {
    if (required || has(key)) {
      complain(ErrorCode::kCorrupt, key,
               has(key) ? "must be a number" : "is missing, the model cannot be read without it");
    }
    return required ? std::optional(low) : std::nullopt;
  }
  if (!(*v >= low && *v <= high)) {  // NaN too
    complain(ErrorCode::kCorrupt, key, fmt::format("{} is not within {} … {}", *v, low, high));
    return low;
  }
  return v;
}

int Numbers::integer(std::string_view key, int low, int high, std::optional<int> fallback) {
  const std::optional<double> v = value(key, low, high, !fallback);
  if (v && *v != std::floor(*v)) complain(ErrorCode::kCorrupt, key, fmt::format("{} is no whole number", *v));
  return v ? int(*v) : *fallback;
}

float Numbers::real(std::string_view key, double low, double high, std::optional<float> fallback) {
  const std::optional<double> v = value(key, low, high, !fallback);
  return v ? float(*v) : *fallback;
}

bool Numbers::flag(std::string_view key, bool fallback) {
  const std::optional<bool> v = values_.boolean(full(key));
  if (!v && has(key)) complain(ErrorCode::kCorrupt, key, "must be true or false");
  return v.value_or(fallback);
}

std::string Numbers::text(std::string_view key, std::string_view fallback) {
  const std::optional<std::string_view> v = values_.string(full(key));
  if (!v && has(key)) complain(ErrorCode::kCorrupt, key, "must be a string");
  return std::string(v.value_or(fallback));
}

}  // namespace sluice
