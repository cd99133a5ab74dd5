// One command line being read: CLI11's tree of commands, and what their flags fill. CLI11 lives in the files
// that include this one: command_line.cc, flags_serving.cc, flags_measuring.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cli/command_line.h"

namespace sluice::cli {

// CLI::Range lets NaN through.
CLI::Validator real_between(double low, double high);

// A flag that sets a key; applied after sluice.yaml has been read.
struct KeyFlag {
  const char* key;
  std::string flag;
  CLI::Option* option = nullptr;
  std::vector<std::string> values;
};

class Parser {
 public:
  Parser();
  std::variant<CommandLine, int> parse(int argc, char** argv);
  Result<Config> settings(int argc, char** argv);

 private:
  Status take(const std::vector<std::string>& words);
  CLI::App* command(CLI::App& parent, const char* name, Command command, const char* text,
                    const char* examples);
  void add_model(CLI::App* app, bool required);
  void add_dummy(CLI::App* app);
  void add_key(CLI::App* app, const std::string& flag, const char* key, const char* text = nullptr);
  void add_model_flags(CLI::App* app);
  void add_sampling(CLI::App* app);
  void add_serve();
  void add_run_and_chat();
  void add_inspect();
  void add_eval();
  void add_quantize();
  void add_trace();
  void add_bench();
  void add_doctor();
  void add_tune();
  void add_simulate(CLI::App& bench);
  Status settle();  // sluice.yaml, environment, flags, in this order
  Status check() const;
  std::string chosen_path() const;

  CLI::App app_{"Serves Llama-class language models on any machine, and explains its own speed."};
  CommandLine line_;
  std::string model_, dummy_, quant_, config_file_;
  std::vector<std::string> settings_;  // --set KEY=VALUE
  double kv_gib_ = 0;
  CLI::Option* kv_gib_option_ = nullptr;
  std::deque<KeyFlag> flags_;  // stable addresses: CLI11 keeps them
  std::vector<std::pair<CLI::App*, Command>> commands_;
};

}  // namespace sluice::cli
