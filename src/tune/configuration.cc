#include "tune/configuration.h"

#include <algorithm>
#include <string_view>

namespace sluice::tune {
namespace {

constexpr std::string_view kDummy = "dummy:";

auto place(std::vector<Setting>& settings, const std::string& key) {
  return std::lower_bound(settings.begin(), settings.end(), key,
                          [](const Setting& s, const std::string& k) { return s.key < k; });
}

}  // namespace

void Configuration::set(const std::string& key, const std::string& value) {
  const auto at = place(settings, key);
  if (at != settings.end() && at->key == key)
    at->value = value;
  else
    settings.insert(at, {key, value});
}

void Configuration::clear(const std::string& key) {
  std::erase_if(settings, [&](const Setting& s) { return s.key == key; });
}

std::string Configuration::get(const std::string& key) const {
  for (const Setting& s : settings)
    if (s.key == key) return s.value;
  return {};
}

std::vector<std::string> serve_words(const Configuration& configuration) {
  std::vector<std::string> words;
  if (configuration.model.starts_with(kDummy))
    words = {"--dummy", configuration.model.substr(kDummy.size())};
  else
    words = {configuration.model};
  for (const Setting& s : configuration.settings) {
    words.emplace_back("--set");
    words.push_back(s.key + "=" + s.value);
  }
  return words;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789-_=+./:,@%") == std::string::npos;
    if (!line.empty()) line += ' ';
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace sluice::tune
