// yaml-cpp lives in this file alone.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cli/config.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 8;

class Reader {
 public:
  Reader(Config& config, const std::string& path) : config_(config), path_(path) {}

  Status read(const YAML::Node& node, const std::string& prefix, int depth) {
    if (node.IsNull() && prefix.empty()) return {};  // an empty file
    if (!node.IsMap())
      return at(node, fmt::format("{}expected keys and values", prefix.empty() ? "" : prefix + ": "));
    if (depth > kMaxConfigDepth) return at(node, fmt::format("'{}' is nested too deeply", prefix));
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return at(entry.first, "a key must be a plain word");
      const std::string name = prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
      if (Status status = read_entry(entry.first, entry.second, name, depth); !status) return status;
    }
    return {};
  }

 private:
  Status read_entry(const YAML::Node& key_node, const YAML::Node& value, const std::string& name, int depth) {
    if (!seen_.insert(name).second) return at(key_node, fmt::format("'{}' is given twice", name));
    if (const Key* key = find_key(name)) return read_value(*key, value);
    for (const Key& key : config_keys())
      if (std::string_view(key.name).starts_with(name + ".")) return read(value, name, depth + 1);
    // Not known, whatever lies below it: the message names the deepest key, so that the nearest name can be
    // right.
    std::string deepest = name;
    YAML::Node below = value;
    for (int i = 0; i < kMaxConfigDepth && below.IsMap() && below.size() > 0; ++i) {
      deepest += "." + below.begin()->first.Scalar();
      below.reset(below.begin()->second);
    }
    return at(key_node, set_key(config_, deepest, "").error().message);
  }

  Status read_value(const Key& key, const YAML::Node& value) {
    const bool list = std::holds_alternative<std::vector<std::string>*>(key.slot(config_));
    std::vector<std::string> values;
    if (list && value.IsSequence()) {
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) return at(item, fmt::format("{}: expected a list of texts", key.name));
        values.push_back(item.Scalar());
      }
    } else if (value.IsScalar()) {
      values.push_back(value.Scalar());
    } else {
      return at(value, fmt::format("{}: expected {}", key.name, list ? "a list of texts" : "one value"));
    }
    if (Status status = set_key(config_, key, values); !status)
      return at(value, fmt::format("{}: {}", key.name, status.error().message));
    return {};
  }

  Error at(const YAML::Node& node, const std::string& message) const {
    return {ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path_, node.Mark().line + 1, message)};
  }

  Config& config_;
  const std::string& path_;
  std::set<std::string> seen_;
};

}  // namespace

Result<std::vector<std::string>> read_list(const std::string& text) {
  const Error wrong{ErrorCode::kInvalidArgument, "expected a list of texts: [A, B]"};
  try {
    const YAML::Node node = YAML::Load(text);
    if (!node.IsSequence()) return wrong;
    std::vector<std::string> values;
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) return wrong;
      values.push_back(item.Scalar());
    }
    return values;
  } catch (const YAML::Exception&) {
    return wrong;
  }
}

Status load_config_file(Config& config, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  if (!in || !in.read(text.data(), std::streamsize(text.size())).eof() ||
      in.gcount() > std::streamsize(kMaxConfigBytes)) {
    const bool too_long = in.good();
    return Error{ErrorCode::kIo,
                 fmt::format("{}: {}", path, too_long ? "longer than 1 MiB" : "cannot be read")};
  }
  text.resize(size_t(in.gcount()));
  try {
    return Reader(config, path).read(YAML::Load(text), "", 0);
  } catch (const YAML::Exception& e) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, e.mark.line + 1, e.msg)};
  }
}

}  // namespace sluice::cli
