// Flags that set a key of sluice.yaml go through the table of keys, so that both are checked alike; the
// environment is read here and nowhere else.
#include "cli/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "cli/canary_config.h"
#include "cli/otel_environment.h"
#include "cli/parser.h"
#include "engine/batching_settings.h"
#include "engine/kv_size.h"
#include "model/dummy_checkpoint.h"

namespace sluice::cli {
namespace {

constexpr const char* kVersion = "0.1.0";

}  // namespace

CLI::Validator real_between(double low, double high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == 0 && value >= low && value <= high) return {};
    return fmt::format("expected a number from {} to {}, got '{}'", low, high, text);
  };
  return CLI::Validator(check, fmt::format("{} - {}", low, high));
}

Parser::Parser() {
  app_.name("sluice");
  app_.set_version_flag("--version", std::string("sluice ") + kVersion);
  app_.require_subcommand(1);
  app_.get_formatter()->column_width(34);
  app_.footer(
      "Examples:\n"
      "  sluice serve models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  sluice run models/gemma-3-270m-q4_k_m.gguf -p 'The river rises in'\n"
      "  sluice inspect ./Llama-3.2-1B-Instruct\n"
      "\n`sluice COMMAND --help` shows a command's flags.");
  add_serve();
  add_run_and_chat();
  add_inspect();
  add_eval();
  add_quantize();
  add_trace();
  add_doctor();
  add_tune();
  add_bench();
}

CLI::App* Parser::command(CLI::App& parent, const char* name, Command command, const char* text,
                          const char* examples) {
  CLI::App* app = parent.add_subcommand(name, text);
  app->footer(std::string("Examples:\n") + examples);
  app->get_formatter()->column_width(34);
  commands_.emplace_back(app, command);
  return app;
}

namespace {

// "90s", "10m", "1h", or seconds.
std::optional<double> seconds_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string_view unit = end;
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (end == text.c_str() || factor == 0 || !(value > 0 && value * factor <= 86400)) return {};
  return value * factor;
}

}  // namespace

Status Parser::settle() {
  if (line_.command == Command::trace) {
    line_.trace = app_.get_subcommand("trace")->remaining();
    return {};
  }
  Config& config = line_.config;
  // Only a server's start is worth a log; elsewhere standard error is for what went wrong.
  if (line_.command != Command::serve || line_.serve.dry_run) config.log_level = "warn";
  if (!config_file_.empty())
    if (Status status = load_config_file(config, config_file_); !status) return status;
  if (const char* key = std::getenv("SLUICE_API_KEY"); key && *key) {
    config.server.api_keys.emplace_back(key);
    for (std::string* asks_with : {&line_.doctor.api_key, &line_.bench_serve.api_key})
      if (asks_with->empty()) *asks_with = key;
  }
  if (line_.command == Command::serve)
    if (Status status = take_otel_environment(
            config.server.tracing, [](const char* name) -> const char* { return std::getenv(name); });
        !status)
      return status;
  if (const char* faults = std::getenv("SLUICE_FAULTS"); faults && *faults && line_.command == Command::serve) {
    Result<FaultPlan> plan = parse_faults(faults);
    if (!plan) return Error{ErrorCode::kInvalidArgument, "SLUICE_FAULTS: " + plan.error().message};
    line_.serve.faults = std::move(*plan);
  }
  for (const std::string& setting : settings_) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos)
      return Error{ErrorCode::kInvalidArgument, "--set: expected KEY=VALUE, got '" + setting + "'"};
    const std::string name = setting.substr(0, equals);
    if (Status status = set_key(config, name, setting.substr(equals + 1)); !status)
      return Error{ErrorCode::kInvalidArgument, "--set " + name + ": " + status.error().message};
  }
  line_.tune.budget_s = seconds_of(line_.tune.budget).value_or(0);
  line_.tune.from_config = !config_file_.empty();
  if (kv_gib_option_->count() > 0) config.model.engine.kv_bytes = size_t(kv_gib_ * double(1u << 30));
  for (KeyFlag& flag : flags_) {
    if (flag.option->count() == 0) continue;
    line_.inspect.device |= std::string_view(flag.key) == "device";
    if (Status status = set_key(config, *find_key(flag.key), flag.values); !status)
      return Error{ErrorCode::kInvalidArgument, flag.flag + ": " + status.error().message};
  }
  if (!model_.empty()) config.model.path = model_;
  if (dummy_.empty())
    return quant_.empty() ? Status()
                          : Error{ErrorCode::kInvalidArgument, "--quant is the format of --dummy SHAPE"};
  if (!quant_.empty()) {
    if (dummy_.find(':') != std::string::npos)
      return Error{ErrorCode::kInvalidArgument, "give --dummy SHAPE:FORMAT or --quant FORMAT, not both"};
    dummy_ += ":" + quant_;
  }
  if (!model_.empty()) return Error{ErrorCode::kInvalidArgument, "give MODEL or --dummy SHAPE, not both"};
  if (Result<std::unique_ptr<Checkpoint>> made = make_dummy_checkpoint(dummy_); !made)
    return std::move(made).error();
  const bool named = dummy_.find(':') != std::string::npos,
             card = config.model.device.starts_with("cuda") ||
                    (!line_.bench_simulate.card.empty() && !line_.bench_simulate.card.starts_with("cpu"));
  config.model.path = std::string(kDummyPrefix) + dummy_ + (named || !card ? "" : ":bf16");
  return {};
}

namespace {

// "ref" is the float32 judge of the tests.
bool known_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || device == "ref" || device == "cuda") return true;
  const size_t digits = device.find_first_not_of("0123456789", 5);
  return device.starts_with("cuda:") && device.size() > 5 && digits == std::string::npos;
}

Status check_simulate(const BenchSimulateOptions& s, bool has_model) {
  const auto wrong = [](const char* message) { return Error{ErrorCode::kInvalidArgument, message}; };
  if (s.card.empty() == s.fit.empty()) return wrong("give --card CARD with a model, or --fit FILE");
  if (!s.card.empty() && !has_model) return wrong("--card: give MODEL or --dummy SHAPE too");
  if (!s.fit.empty() && has_model) return wrong("--fit: the file says which model it was; give no other");
  if (s.sweeps.size() > 2) return wrong("--sweep: at most two keys");
  return {};
}

}  // namespace

Status Parser::check() const {
  const auto wrong = [](const char* message) { return Error{ErrorCode::kInvalidArgument, message}; };
  const Config& config = line_.config;
  if (const int context = config.model.engine.max_context; context != 0 && context < kLeastContext)
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("engine.max_context (--ctx): {} tokens are too few; give at least {}, or 0 for what "
                    "the model was made for",
                    context, kLeastContext)};
  if (!known_device(config.model.device))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("device: expected auto, cpu or cuda[:N], got '{}'", config.model.device)};
  if (const auto canary = canary_config(config); !canary)
    return Error{ErrorCode::kInvalidArgument, canary.error().field + ": " + canary.error().message};
  if (const auto batching = batching_of(config.model.engine.batching, config.model.engine.max_sequences);
      !batching)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: {}", batching.error().field, batching.error().message)};
  if (const auto tiering = tiering_of(config.model.engine.kv); !tiering)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: {}", tiering.error().field, tiering.error().message)};
  const bool has_model = !line_.config.model.path.empty();
  const BenchServeOptions& s = line_.bench_serve;
  switch (line_.command) {
    case Command::serve:
      if (!has_model && !line_.serve.print_config && !line_.serve.print_schema)
        return wrong("MODEL is required (or --dummy SHAPE)");
      break;
    case Command::run:
    case Command::bench_engine:
      if (!has_model) return wrong("give MODEL or --dummy SHAPE");
      break;
    case Command::bench_serve:
      if (s.concurrency == 0 && s.rate == 0) return wrong("give --concurrency or --rate");
      if (s.shared_prefix > s.input_tokens) return wrong("--shared-prefix: more than --input-tokens");
      break;
    case Command::tune:
      if (!has_model) return wrong("give MODEL or --dummy SHAPE");
      if (line_.tune.shared_prefix > line_.tune.input_tokens)
        return wrong("--shared-prefix: more than --input-tokens");
      if (line_.tune.out.empty()) return wrong("--output: is empty; name a folder");
      if (line_.tune.budget_s <= 0) return wrong("--budget: expected a time up to 24h, as 90s, 10m or 1h");
      break;
    case Command::bench_simulate:
      return check_simulate(line_.bench_simulate, has_model);
    default:
      break;
  }
  return {};
}

std::string Parser::chosen_path() const {
  std::string path = "sluice";
  for (const CLI::App* at = &app_; !at->get_subcommands().empty(); at = at->get_subcommands().front())
    path += " " + at->get_subcommands().front()->get_name();
  return path;
}

namespace {

int wrong_use(const std::string& message, const std::string& path) {
  std::fprintf(stderr, "sluice: %s; try: %s --help\n", message.c_str(), path.c_str());
  return kExitWrongUse;
}

bool has_command(const CLI::App& app, const std::string& word) {
  const auto commands = app.get_subcommands(nullptr);
  return std::any_of(commands.begin(), commands.end(),
                     [&](const CLI::App* c) { return c->get_name() == word; });
}

// A first word that is no command gets the nearest one suggested. `help [COMMAND…]` asks for --help of COMMAND.
std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  const std::string near = nearest_name(word, names);
  return "no command named '" + word + "'" + (near.empty() ? "" : "; did you mean '" + near + "'?");
}

// The first word that looks like a flag and is none of the command that was chosen; empty: none. CLI11 would
// complain of a missing one first, and lists leftovers in an order of its own.
std::string unknown_flag(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* app = &root;
  for (const std::string& word : words) {
    if (word == "--") return {};
    if (has_command(*app, word)) app = app->get_subcommand(word);
    if (app->get_prefix_command()) return {};
    const bool flag = word.size() > 2 ? word.starts_with("--")
                                      : word.size() == 2 && word[0] == '-' && std::isalpha(uint8_t(word[1]));
    const std::string name = word.substr(0, word.find('='));
    if (!flag || app->get_option_no_throw(name)) continue;
    std::vector<std::string> names;
    for (const CLI::Option* option : app->get_options())
      for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    const std::string near = nearest_name(name, names);
    return "no flag named '" + name + "'" + (near.empty() ? "" : "; did you mean " + near + "?");
  }
  return {};
}

}  // namespace

// Throws what CLI11 throws.
Status Parser::take(const std::vector<std::string>& words) {
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  app_.parse(reversed);
  for (const auto& [app, command] : commands_)
    if (app->parsed()) line_.command = command;
  if (Status status = settle(); !status) return status;
  return check();
}

Result<Config> Parser::settings(int argc, char** argv) {
  try {
    if (Status status = take({argv + std::min(argc, 1), argv + argc}); !status)
      return std::move(status).error();
    return std::move(line_.config);
  } catch (const CLI::Error& e) {
    return Error{ErrorCode::kInvalidArgument, e.what()};
  }
}

std::variant<CommandLine, int> Parser::parse(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) words = {"--help"};
  if (words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (!words[0].starts_with('-') && !has_command(app_, words[0]))
    return wrong_use(unknown_command(app_, words[0]), "sluice");
  if (words[0] == "bench" && words.size() > 1 && !words[1].starts_with('-'))
    if (const CLI::App* bench = app_.get_subcommand("bench"); !has_command(*bench, words[1]))
      return wrong_use("bench: " + unknown_command(*bench, words[1]), "sluice bench");
  try {
    if (Status status = take(words); !status) return wrong_use(status.error().message, chosen_path());
    return std::move(line_);
  } catch (const CLI::Success& e) {
    app_.exit(e);  // prints help or version
    return 0;
  } catch (const CLI::ParseError& e) {
    const std::string unknown = unknown_flag(app_, words);
    return wrong_use(unknown.empty() ? e.what() : unknown, chosen_path());
  }
}

std::variant<CommandLine, int> parse_command_line(int argc, char** argv) { return Parser().parse(argc, argv); }
Result<Config> reread_settings(int argc, char** argv) { return Parser().settings(argc, argv); }

}  // namespace sluice::cli
