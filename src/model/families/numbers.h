// Reads a model's numbers by key and keeps the first complaint, so that a family's page reads without error
// branches.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/formats/key_values.h"

namespace sluice {

// Every key is looked up as prefix + key. Where a fallback is given the key may be absent. A complaint names
// file and key; after one, reads go on and give their lower bound, so nothing downstream sees a number out of
// its range.
class Numbers {
 public:
  Numbers(const KeyValues& values, std::string path, std::string prefix)
      : values_(values), path_(std::move(path)), prefix_(std::move(prefix)) {}

  bool has(std::string_view key) const { return values_.has(full(key)); }
  // Whether the key is there and holds keys of its own. Anything else that stands there is a complaint.
  bool section(std::string_view key);
  // GGUF may repeat some numbers for each layer: an array of equal ones counts as that number there.
  int integer(std::string_view key, int low, int high, std::optional<int> fallback = {});
  float real(std::string_view key, double low, double high, std::optional<float> fallback = {});
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  std::vector<std::string_view> texts(std::string_view key) const { return values_.strings(full(key)); }
  std::vector<double> list(std::string_view key) const { return values_.numbers(full(key)); }

  // "PATH: key 'prefix.key': WHY", kUnsupported.
  void refuse(std::string_view key, const std::string& why);
  bool ok() const { return !error_; }
  const Error& error() const { return *error_; }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  std::optional<double> value(std::string_view key, double low, double high, bool required);
  void complain(ErrorCode code, std::string_view key, const std::string& why);

  const KeyValues& values_;
  std::string path_, prefix_;
  std::optional<Error> error_;
};

}  // namespace sluice
