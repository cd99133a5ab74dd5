// Everything that can be set, from three places: defaults, sluice.yaml, flags; later ones win. One table of
// keys (config_keys.cc) drives reading, checking, --print-config, --print-schema and docs/configuration.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/machine_plan.h"
#include "engine/served_model.h"
#include "server/server.h"

namespace sluice::cli {

struct Config {
  LoadOptions model;
  ServerConfig server;
  MachineSettings machine;
  int drain_timeout_ms = 30000;  // from SIGTERM until answers still running are cut off
  int watchdog_s = 0;            // a turn of the engine's loop, or a step, that takes longer ends the process
  std::string record_steps;      // a file for the records of all steps; empty: none
  std::string log_level = "info";
  bool log_json = false;
};

// Where a key's value lives. The alternative is the key's type.
using KeySlot = std::variant<bool*, int*, size_t*, std::string*, std::vector<std::string>*, double*>;

struct Key {
  const char* name;  // path in sluice.yaml, dots between levels: "server.port"
  const char* room;  // whose setting it is
  const char* unit;  // "ms", "bytes", "tokens", or ""
  KeySlot (*slot)(Config&);
  int64_t min, max;       // of numbers; a double is above min
  const char* choices;    // of texts: "a|b|c"; empty: any
  const char* help;       // one sentence
  bool from_min = false;  // a double may be min itself
};

std::span<const Key> config_keys();
const Key* find_key(std::string_view name);

// Errors say what was expected, without where it came from. `values`: one, or any number for a list.
Status set_key(Config& config, const Key& key, std::span<const std::string> values);
Status set_key(Config& config, std::string_view name,
               const std::string& value);  // also: unknown name, with the nearest

// Reads sluice.yaml over `config`. Errors are one line: file, line number, key, what was expected.
Status load_config_file(Config& config, const std::string& path);
// "[a, b]", as the file would have it.
Result<std::vector<std::string>> read_list(const std::string& text);

// A key's value as set_key takes it: text as it is, a list as "[a, b]".
std::string key_value(const Config& config, const Key& key);

// Keys whose values differ.
std::vector<const Key*> changed_keys(const Config& a, const Config& b);

// The table, shown. print_config is a sluice.yaml that gives this very config (keys of secrets left out).
std::string print_config(const Config& config);
std::string print_schema();

// The name nearest to `name` by edit distance, or empty if none is near.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace sluice::cli
