// What a server is started with, as a value: a model and settings of sluice.yaml over what the user's own file
// says.
#pragma once

#include <string>
#include <vector>

namespace sluice::tune {

struct Setting {
  std::string key;    // "scheduler.policy"
  std::string value;  // as on a command line
  bool operator==(const Setting&) const = default;
};

struct Configuration {
  std::string model;              // a path, or "dummy:SHAPE:FORMAT"
  std::vector<Setting> settings;  // at most one of a key, sorted by key

  void set(const std::string& key, const std::string& value);
  void clear(const std::string& key);  // back to the default
  // Empty where it is not set.
  std::string get(const std::string& key) const;
  bool operator==(const Configuration&) const = default;
};

// MODEL and --set as `sluice serve` takes them, word by word.
std::vector<std::string> serve_words(const Configuration& configuration);
// The same for a shell.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace sluice::tune
