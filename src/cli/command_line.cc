// CLI11 lives in this file alone. Flags that set a key of sluice.yaml go through the table of keys, so that
// both are checked alike; the environment is read here and nowhere else.
#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <utility>

#include "cli/canary_config.h"
#include "cli/otel_environment.h"
#include "engine/batching_settings.h"
#include "engine/kv_size.h"
#include "model/dummy_checkpoint.h"

namespace sluice::cli {
namespace {

constexpr const char* kVersion = "0.1.0";

// CLI::Range lets NaN through.
CLI::Validator real_between(double low, double high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == 0 && value >= low && value <= high) return {};
    return fmt::format("expected a number from {} to {}, got '{}'", low, high, text);
  };
  return CLI::Validator(check, fmt::format("{} - {}", low, high));
}

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

void Parser::add_model(CLI::App* app, bool required) {
  CLI::Option* option = app->add_option("MODEL", model_, "A .gguf file or a Hugging Face folder");
  if (required) option->required();
}

void Parser::add_dummy(CLI::App* app) {
  app->add_option(
         "--dummy", dummy_,
         "Instead of MODEL, made-up weights of a shape: a name (smollm2-135m, qwen2.5-0.5b, llama-3.2-1b, "
         "llama-3.2-3b, llama-3-8b, llama-3.1-8b, llama-3.1-70b, qwen3-8b; null computes nothing and answers "
         "at "
         "once) and a format (:int4 :awq :int8 :w8a8 :fp8 :bf16 "
         ":f16 :f32; default: bf16 with --device cuda[:N], else int4)")
      ->type_name("SHAPE");
  app->add_option("--quant", quant_, "The format of --dummy SHAPE, instead of SHAPE:FORMAT")
      ->type_name("FORMAT");
}

void Parser::add_key(CLI::App* app, const std::string& flag, const char* key, const char* text) {
  const Key* row = find_key(key);
  CHECK(row, key);
  KeyFlag& entry = flags_.emplace_back(KeyFlag{key, flag.substr(0, flag.find(',')), nullptr, {}});
  const std::string help = text ? text : row->help;
  const KeySlot slot = row->slot(line_.config);
  if (std::holds_alternative<bool*>(slot)) {
    // "--x,!--no-x": the second counts downwards.
    entry.option = app->add_flag_function(
        flag, [&entry](int64_t count) { entry.values = {count < 0 ? "false" : "true"}; }, help);
    return;
  }
  entry.option = app->add_option(flag, entry.values, help)->expected(1);
  if (std::holds_alternative<std::vector<std::string>*>(slot))
    entry.option->take_all();
  else
    entry.option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (std::holds_alternative<int*>(slot) || std::holds_alternative<size_t*>(slot))
    entry.option->type_name("N");
  else if (std::holds_alternative<double*>(slot))
    entry.option->type_name("X");
  else
    entry.option->type_name(*row->choices ? row->choices + (*row->choices == '|') : "TEXT");
}

// What any command that loads a model may set.
void Parser::add_model_flags(CLI::App* app) {
  app->add_option("--config", config_file_, "Read sluice.yaml-style settings from FILE; flags override it")
      ->type_name("FILE");
  app->add_option("--set", settings_, "Set any key of sluice.yaml")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  add_key(app, "--device", "device");
  add_key(app, "--threads", "cpu.threads");
  add_key(app, "--instruction-set", "cpu.instruction_set");
  add_key(app, "--ctx", "engine.max_context");
  add_key(app, "--graphs,!--no-graphs", "engine.graphs");
  add_key(app, "--gpu-memory-fraction", "gpu.memory_fraction");
  add_key(app, "--log-level", "log.level");
  add_key(app, "--log-json", "log.json");
}

void Parser::add_serve() {
  CLI::App* app = command(app_, "serve", Command::serve, "Serve a model over HTTP",
                          "  sluice serve models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
                          "  sluice serve MODEL --host 0.0.0.0 --port 8080 --threads 4\n"
                          "  sluice serve MODEL --config sluice.yaml --max-sequences 32\n"
                          "  sluice serve MODEL --device cuda:1\n"
                          "  sluice serve --dummy llama-3.1-8b  # made-up weights, to measure speed\n"
                          "  sluice serve MODEL --dry-run       # memory and limits, without loading\n"
                          "  sluice serve --print-config        # a sluice.yaml to start from\n");
  add_model(app, false);
  add_dummy(app);
  add_model_flags(app);
  add_key(app, "--host", "server.host");
  add_key(app, "--port", "server.port");
  add_key(app, "--model-name", "server.model_name");
  add_key(app, "--api-key", "server.api_keys");
  add_key(app, "--chat-template", "model.chat_template_file");
  add_key(app, "--max-sequences", "engine.max_sequences");
  add_key(app, "--max-queue", "engine.max_queue");
  add_key(app, "--step-tokens", "engine.step_tokens");
  add_key(app, "--record-steps", "observe.record_steps");
  add_key(app, "--kv-bytes", "engine.kv_bytes");
  kv_gib_option_ = app->add_option("--kv-gib", kv_gib_, "The same in GiB")
                       ->type_name("GIB")
                       ->check(real_between(0, 1e6))
                       ->excludes(flags_.back().option);
  app->add_flag("--dry-run", line_.serve.dry_run, "Print what would be decided at start, and stop");
  app->add_flag("--print-config", line_.serve.print_config, "Print the settings as sluice.yaml, and stop");
  app->add_flag("--print-schema", line_.serve.print_schema, "Print the JSON schema of sluice.yaml, and stop");
}

void Parser::add_sampling(CLI::App* app) {
  GenerateOptions& g = line_.generate;
  app->add_option("-n,--max-tokens", g.max_tokens, "Tokens to generate at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--temperature", g.temperature, "0: greedy")->check(real_between(0, 100));
  app->add_option("--top-p", g.top_p, "Keep the likeliest tokens up to this sum")->check(real_between(0, 1));
  app->add_option("--top-k", g.top_k, "Keep so many of the likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--min-p", g.min_p, "Drop tokens less likely than this share of the likeliest")
      ->check(real_between(0, 1));
  app->add_option("--seed", g.seed, "The same seed gives the same tokens again")->check(CLI::NonNegativeNumber);
}

void Parser::add_run_and_chat() {
  CLI::App* run = command(app_, "run", Command::run, "Complete one prompt and print it",
                          "  sluice run models/gemma-3-270m-q4_k_m.gguf -p 'The river rises in' -n 40\n"
                          "  sluice run MODEL -p 'Once upon a time' --temperature 0.8 --seed 7\n"
                          "  sluice run MODEL -p - < prompt.txt > answer.txt\n");
  add_model(run, false);
  add_dummy(run);
  run->add_option("-p,--prompt", line_.generate.prompt, "The text to go on from; -: standard input")
      ->required();
  run->add_flag("--raw", line_.generate.raw, "Special-token text in the prompt is ordinary text");
  add_sampling(run);
  add_model_flags(run);

  CLI::App* chat = command(app_, "chat", Command::chat, "Talk to a model, line by line",
                           "  sluice chat models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
                           "  sluice chat MODEL --system 'Answer in one sentence.' --temperature 0.7\n"
                           "  sluice chat base-model.gguf --chat-template chatml.jinja\n");
  add_model(chat, true);
  chat->add_option("--system", line_.generate.system, "A system message to start with");
  add_sampling(chat);
  add_model_flags(chat);
  add_key(chat, "--chat-template", "model.chat_template_file");
}

void Parser::add_inspect() {
  CLI::App* app = command(app_, "inspect", Command::inspect, "What a model file holds, without loading it",
                          "  sluice inspect models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
                          "  sluice inspect MODEL --tensors\n"
                          "  sluice inspect MODEL --json | jq .memory\n");
  add_model(app, true);
  app->add_flag("--tensors", line_.inspect.tensors, "One line per tensor");
  app->add_flag("--json", line_.inspect.json, "One JSON object, tensors included");
  add_key(app, "--device", "device",
          "Say what becomes of the model there: auto, cpu or cuda[:N]; default: nowhere");
  add_key(app, "--ctx", "engine.max_context");
}

void Parser::add_eval() {
  EvalOptions& e = line_.eval;
  CLI::App* app = command(
      app_, "eval", Command::eval, "What a quantized model, or a precision of the KV cache, costs and gives",
      "  sluice eval SmolLM2-awq --baseline models/SmolLM2-135M-Instruct.Q4_1.gguf --data corpus.txt\n"
      "  sluice eval MODEL-awq --models MODEL-int8,MODEL-fp8 --baseline MODEL --data corpus.txt --html "
      "cost.html\n"
      "  sluice eval models/SmolLM2-135M-Instruct.Q4_1.gguf --data corpus.txt --kv-precision int8\n"
      "  sluice eval MODEL --data corpus.txt --kv-precision int8,int4,tiered --json\n"
      "  sluice eval MODEL --data corpus.txt --kv-precision tiered --set kv.tier_full_tokens=256\n");
  add_model(app, true);
  app->add_option("--data", e.data, "A text file in UTF-8")->required();
  app->add_option("--baseline", e.baseline, "Compare with this model; default: MODEL with its cache in full")
      ->type_name("MODEL");
  app->add_option("--models", e.models, "Further models, a row of the table each")
      ->type_name("MODEL,…")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option(
         "--batch", e.batch,
         "Measure decoding of so many sequences together, each model alone; 0: do not. Default: 1,32,128 where "
         "models are compared")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 4096));
  app->add_option("--html", e.html, "Write the table and a plot, accuracy against throughput, as one page")
      ->type_name("FILE");
  app->add_option("--kv-precision", e.precisions,
                  "Each beside full precision: bf16, fp8, int8, int4, tiered; default: kv.precision")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp8", "int8", "int4", "tiered"}));
  app->add_option("--window-tokens", e.window_tokens,
                  "The text is cut into contexts of so many tokens, at most the model's")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-tokens", e.max_tokens, "Of the text, so many; 0: all")->check(CLI::Range(0, 1 << 30));
  app->add_flag("--json", e.json, "One JSON object instead of a table");
  add_model_flags(app);
}

// What it takes is its own: all words behind `trace` go to it.
void Parser::add_trace() {
  CLI::App* app =
      command(app_, "trace", Command::trace, "Watch a running server's requests from outside (eBPF)",
              "  sudo sluice trace --slow 500\n");
  app->set_help_flag();
  app->prefix_command();
}

void Parser::add_quantize() {
  QuantizeOptions& q = line_.quantize;
  quantize::Settings& s = q.settings;
  CLI::App* app = command(
      app_, "quantize", Command::quantize, "Make a smaller model of a model",
      "  sluice quantize ./SmolLM2-135M -o SmolLM2-awq --method awq --calibration texts.jsonl\n"
      "  sluice quantize models/gemma-3-270m-q4_k_m.gguf -o gemma-rtn --method rtn --targets mlp\n"
      "  sluice quantize MODEL -o MODEL-int8 --method int8 --calibration texts.txt --observer percentile:99.9\n"
      "  sluice quantize MODEL -o MODEL-fp8 --method fp8 --block 128\n"
      "  sluice quantize model.gguf -o model-q4.gguf --method awq --calibration texts.txt --samples 64\n");
  add_model(app, true);
  app->add_option("-o,--output", q.out, "A folder to make, or a file that ends in .gguf")->required();
  app->add_option("--method", q.method,
                  "awq: 4 bits by activations; gptq: 4 or 8 bits, errors made good; int8: smoothed, for 8-bit "
                  "activations; fp8: 8-bit floats; rtn: rounding alone")
      ->check(CLI::IsMember({"awq", "gptq", "int8", "fp8", "rtn"}))
      ->capture_default_str();
  app->add_option("--bits", s.bits, "4 or 8; default: 4 with awq, gptq and rtn, else 8")
      ->check(CLI::IsMember({4, 8}));
  app->add_option(
         "--group-size", s.group,
         "Columns per scale at most; halved until it divides every matrix's columns, down to 32. GGUF has 32")
      ->capture_default_str();
  app->add_option("--block", s.block, "fp8: a scale per 128 x 128 block; default: per output")
      ->check(CLI::IsMember({128}));
  app->add_option("--targets", q.targets,
                  "mlp: feed-forward only; all: attention too. Never embedding and head")
      ->check(CLI::IsMember({"mlp", "all"}))
      ->capture_default_str();
  app->add_option("--layout", s.layout,
                  "Default: the one that the method is published in; gguf if -o ends in .gguf")
      ->check(CLI::IsMember({"awq", "gptq", "compressed-tensors", "fp8", "gguf"}));
  app->add_option("--calibration", q.calibration,
                  "A text, or JSON lines of {\"text\", \"kind\"} (told by the first line): awq, gptq and int8 "
                  "measure activations on "
                  "it; with fp8 optional: errors are then made good as gptq does")
      ->type_name("FILE");
  app->add_option("--eval-data", q.eval_data, "Refuse if calibration shares a passage with this text")
      ->type_name("FILE");
  app->add_option("--samples", q.samples, "Drawn from the calibration text by length and kind")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app->add_option("--sample-tokens", q.sample_tokens, "Of a sample, at most")
      ->check(CLI::Range(16, 1 << 16))
      ->capture_default_str();
  app->add_option("--observer", q.observer,
                  "int8: how a range of activations is found: minmax, moving-average or percentile[:P]")
      ->capture_default_str();
  app->add_option("--observe-per", q.observe_per,
                  "int8: which of them have one together: channel, group[:COLUMNS] or tensor")
      ->capture_default_str();
  app->add_option("--smoothing", s.smoothing,
                  "int8: the share of the activations' spread that weights take over")
      ->check(real_between(0, 1))
      ->capture_default_str();
  app->add_option("--damping", s.damping,
                  "gptq, calibrated fp8: of the mean diagonal of the inputs' second moments")
      ->check(real_between(1e-6, 10))
      ->capture_default_str();
  app->add_flag("--clip,!--no-clip", s.clip, "awq: narrow the groups' ranges where that helps (default)");
  app->add_option("--seed", q.seed, "Of drawing samples")
      ->check(CLI::Range(uint64_t{0}, uint64_t(INT64_MAX)))  // CLI11 reads -1 as 2^64 - 1
      ->capture_default_str();
  add_key(app, "--device", "device",
          "Where layers compute: auto, cpu or cuda[:N]; default: cpu. Methods round on the CPU");
  app->parse_complete_callback([app, &q] {
    for (const CLI::Option* option : app->get_options())
      if (option->count() > 0 && !option->get_lnames().empty()) q.given.insert(option->get_lnames().front());
  });
  add_key(app, "--threads", "cpu.threads");
  add_key(app, "--instruction-set", "cpu.instruction_set");
  add_key(app, "--log-level", "log.level");
}

void Parser::add_doctor() {
  DoctorOptions& d = line_.doctor;
  CLI::App* app =
      command(app_, "doctor", Command::doctor, "What holds a running server back, and what to change",
              "  sluice doctor\n"
              "  sluice doctor http://host:8000 --window 60\n"
              "  sluice doctor --json | jq .findings[0].setting\n");
  app->add_option("URL", d.url, "The server, http://HOST:PORT[/PREFIX]")->capture_default_str();
  app->add_option("--window", d.window_s, "Seconds to look back")
      ->check(CLI::Range(1, 120))
      ->capture_default_str();
  app->add_option("--api-key", d.api_key, "Bearer token; default: SLUICE_API_KEY");
  app->add_option("--timeout-ms", d.timeout_ms, "Of the question")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_flag("--json", d.json, "What /v1/diagnosis says, as it is");
}

void Parser::add_tune() {
  TuneOptions& t = line_.tune;
  CLI::App* app = command(
      app_, "tune", Command::tune, "Find the fastest configuration, step by step, and what each step gives",
      "  sluice tune models/SmolLM2-135M-Instruct.Q4_1.gguf --input-tokens 64 --output-tokens 16 -o report\n"
      "  sluice tune --dummy llama-3.1-8b --device cuda --concurrency 128 -o report --budget 5m\n"
      "  sluice tune MODEL --slo 'p95_ms<1200' --exact -o report\n"
      "  sluice tune MODEL --config sluice.yaml --trace traffic.csv -o report  # from your own settings and "
      "traffic\n"
      "  sluice tune MODEL --order scheduler,batching,kv -o report             # how gains depend on the "
      "order\n");
  add_model(app, false);
  add_dummy(app);
  app->add_option("-o,--output", t.out, "The folder of the report; one that was broken off is gone on with")
      ->required();
  CLI::Option* concurrency =
      app->add_option("--concurrency", t.concurrency, "So many requests always in flight")
          ->check(CLI::Range(1, 4096))
          ->capture_default_str();
  app->add_option("--input-tokens", t.input_tokens, "Prompt length")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--output-tokens", t.output_tokens, "Tokens to ask for")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app->add_option("--shared-prefix", t.shared_prefix, "Of the prompt, tokens that all requests share")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option(
         "--trace", t.trace,
         "Instead: requests from a file (CSV or JSON lines of timestamp,input,output), sent when it says")
      ->type_name("FILE")
      ->excludes(concurrency);
  app->add_option(
      "--slo", t.slo,
      "To be kept: p50_ms, p95_ms or p99_ms end to end, the same of the first token (ttft_) or between tokens "
      "(itl_), as p95_ms<1200,ttft_p95_ms<300");
  app->add_option("--order", t.order,
                  "Of the steps: batching, kv, weights, kernels, scheduler, system; the rest follows");
  app->add_flag("--exact", t.exact,
                "Only what leaves the answers as they are: no smaller weights, keys or values");
  app->add_option(
         "--calibration", t.calibration,
         "A text, for a model of more than 4 bits: 4-bit weights are made with it (sluice quantize --method "
         "awq --targets mlp), before the budget's time begins")
      ->type_name("FILE");
  app->add_option("--eval-data", t.eval_data, "A text that tells what these cost (sluice eval)")
      ->type_name("FILE");
  app->add_option("--budget", t.budget, "Time in all: 90s, 10m or 1h")->capture_default_str();
  app->add_option("--long-contexts", t.long_contexts, "Lengths of the table of long contexts; 0: none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--port", t.port, "Of the servers that are measured; 0: any free one")
      ->check(CLI::Range(0, 65535));
  app->add_option("--seed", t.seed, "Of prompts")->capture_default_str();
  add_model_flags(app);
}

// "90s", "10m", "1h", or seconds.
std::optional<double> seconds_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string_view unit = end;
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (end == text.c_str() || factor == 0 || !(value > 0 && value * factor <= 86400)) return {};
  return value * factor;
}

void Parser::add_bench() {
  CLI::App* bench = app_.add_subcommand("bench", "Measure the engine, or any server with the OpenAI API");
  bench->require_subcommand(1);
  bench->footer(
      "Examples:\n"
      "  sluice bench engine models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  sluice bench serve --url http://127.0.0.1:8000 --concurrency 16\n"
      "  sluice bench simulate --dummy llama-3.1-8b --card h200 --arrivals poisson:40\n");

  BenchEngineOptions& e = line_.bench_engine;
  CLI::App* engine = command(
      *bench, "engine", Command::bench_engine, "Prefill and decode speed at batch sizes and depths",
      "  sluice bench engine MODEL --prompt-tokens 512 --generate-tokens 64\n"
      "  sluice bench engine MODEL --batch 1,4,16 --depth 0,1024 --threads 2 --json\n"
      "  sluice bench engine --dummy llama-3.2-1b:int4 --batch 1\n"
      "  sluice bench engine --dummy llama-3.1-8b --device cuda --batch 1,32,128\n"
      "  sluice bench engine --dummy llama-3.1-8b --device cuda --kv-precision tiered --depth 4096,32768\n");
  add_model(engine, false);
  add_dummy(engine);
  engine->add_option("--prompt-tokens", e.prompt_tokens, "Lengths of prompt to prefill")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  engine->add_option("--generate-tokens", e.generate_tokens, "Tokens to decode per sequence; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  engine->add_option("--batch", e.batch, "Sequences decoding together")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  engine->add_option("--depth", e.depth, "Tokens already in the cache")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_key(engine, "--kv-precision", "kv.precision");
  engine->add_option("--repeat", e.repeat, "Runs of each; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  engine->add_flag("--json", e.json, "One JSON object instead of tables");
  add_model_flags(engine);

  BenchServeOptions& s = line_.bench_serve;
  CLI::App* serve = command(
      *bench, "serve", Command::bench_serve, "Load on any server with the OpenAI API",
      "  sluice bench serve --url http://127.0.0.1:8000 --concurrency 16 --requests 128\n"
      "  sluice bench serve --url http://127.0.0.1:8000 --rate 4 --requests 200 --json\n"
      "  sluice bench serve --url http://host:8080 --concurrency 8 --input-tokens 512 --output-tokens 32\n");
  serve->add_option("--url", s.url, "http://HOST:PORT[/PREFIX]; /v1/completions is asked")->required();
  serve->add_option("--model", s.model, "Name to send; default: the first of /v1/models");
  serve->add_option("--api-key", s.api_key, "Bearer token");
  serve->add_option("--priority", s.lane, "Lane of all requests (sluice only)")
      ->check(CLI::IsMember({"interactive", "standard", "batch"}));
  CLI::Option* concurrency =
      serve->add_option("--concurrency", s.concurrency, "Closed loop: so many requests always in flight")
          ->check(CLI::Range(1, 16384));
  CLI::Option* rate = serve->add_option("--rate", s.rate, "Open loop: requests a second, Poisson arrivals")
                          ->check(real_between(1e-3, 1e6));
  concurrency->excludes(rate);
  serve->add_option("--requests", s.requests, "How many in all")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  serve->add_option("--input-tokens", s.input_tokens, "Prompt length")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve->add_option("--output-tokens", s.output_tokens, "Tokens to ask for")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve->add_flag("--attribution", s.attribution,
                  "ask the server (sluice only) where the time of these requests went, and print it");
  serve->add_flag("--no-keep-alive", s.no_keep_alive,
                  "A connection for each request, for servers that leave a second one unanswered");
  serve->add_option("--shared-prefix", s.shared_prefix, "Of the prompt, tokens that all requests share")
      ->check(CLI::Range(0, 1 << 20));
  serve->add_option("--seed", s.seed, "Of prompts and arrivals")->capture_default_str();
  serve->add_option("--timeout-ms", s.timeout_ms, "Of one request")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  serve->add_flag("--json", s.json, "One JSON object instead of a table");
  add_simulate(*bench);
}

void Parser::add_simulate(CLI::App& bench) {
  BenchSimulateOptions& s = line_.bench_simulate;
  CLI::App* app = command(
      bench, "simulate", Command::bench_simulate,
      "What a server would make of traffic: its scheduler on a virtual clock",
      "  sluice bench simulate --dummy llama-3.1-8b --card h200 --arrivals closed:128 --input-tokens 512 \\\n"
      "    --output-tokens 128 --requests 1024\n"
      "  sluice bench simulate --dummy llama-3.2-1b --card h200 --arrivals poisson:5000 --duration 20 "
      "--input-tokens 32 \\\n"
      "    --output-tokens 1 --set scheduler.policy=windowed --sweep "
      "scheduler.window.max_batch_size=64,128,256\n"
      "  sluice serve MODEL --record-steps steps.jsonl   # then, once it has served:\n"
      "  sluice bench simulate --fit steps.jsonl --arrivals bursty:2,40,1,5 --output-tokens "
      "lognormal:64,0.7,512\n"
      "  sluice bench simulate --fit steps.jsonl --arrivals file:traffic.csv --max-sequences 16 --json\n");
  add_model(app, false);
  add_dummy(app);
  app->add_option("--card", s.card,
                  "Step times by the limits of h200, or of this machine (cpu); what differs follows: "
                  "h200,read_gb_s=3350,tflop_s=500,memory_gib=80,layer_us=18,step_us=20")
      ->type_name("CARD");
  app->add_option(
         "--fit", s.fit,
         "Step times and sizes from a file of serve --record-steps; without --arrivals or --sweep, prints "
         "the fit and stops")
      ->type_name("FILE");
  app->add_option("--arrivals", s.arrivals,
                  "poisson:RATE, bursty:RATE,BURST_RATE,ON_S,OFF_S, closed:CONCURRENCY or file:PATH (CSV or "
                  "JSON lines of "
                  "timestamp,input,output[,lane,tenant,shared_prefix]); default: poisson:10");
  app->add_option("--input-tokens", s.input_tokens,
                  "512, 512±128, uniform:LOW,HIGH or lognormal:MEDIAN,SIGMA[,MOST]")
      ->capture_default_str();
  app->add_option("--output-tokens", s.output_tokens, "The same of answers")->capture_default_str();
  app->add_option("--lanes", s.lanes,
                  "Shares, as interactive:0.2,standard:0.5,batch:0.3; default: all standard");
  app->add_option("--tenants", s.tenants, "Requests come evenly from so many")->check(CLI::Range(1, 1 << 20));
  app->add_option("--shared-prefix", s.shared_prefix,
                  "Of the prompt, tokens that all of a tenant's requests share")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--requests", s.requests, "How many in all; default: 1000, or what arrives in --duration")
      ->check(CLI::Range(1, 1 << 24));
  app->add_option("--duration", s.duration_s, "Seconds during which requests arrive")
      ->check(real_between(1e-3, 1e6));
  app->add_option("--timeout-ms", s.timeout_ms, "After which a request is given up")
      ->check(CLI::Range(1, 1 << 30));
  app->add_option(
      "--host", s.host,
      "Times of the host in us, as plan=15,commit=5,request=150; also plan_sequence, commit_sequence, launch, "
      "notice, answer, answer_sequence");
  app->add_option(
         "--sweep", s.sweeps,
         "A table over values of a key: KEY=A,B,C; once more for a second key. Keys of sluice.yaml, or rate, "
         "concurrency, input_tokens, output_tokens, card")
      ->type_name("KEY=A,B,C")
      ->expected(1)
      ->take_all();
  app->add_option("--seed", s.seed, "Of traffic and of what the fit leaves open")->capture_default_str();
  app->add_flag("--json", s.json, "One JSON object instead of tables");
  add_model_flags(app);
  add_key(app, "--max-sequences", "engine.max_sequences");
  add_key(app, "--max-queue", "engine.max_queue");
  add_key(app, "--step-tokens", "engine.step_tokens");
  add_key(app, "--kv-bytes", "engine.kv_bytes");
  add_key(app, "--prefix-cache,!--no-prefix-cache", "kv.prefix_cache",
          "Whether prompts that begin alike are computed once");
}

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
    if (line_.doctor.api_key.empty()) line_.doctor.api_key = key;
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

}  // namespace

std::variant<CommandLine, int> parse_command_line(int argc, char** argv) { return Parser().parse(argc, argv); }
Result<Config> reread_settings(int argc, char** argv) { return Parser().settings(argc, argv); }

}  // namespace sluice::cli
