// The flags of commands that serve, complete, describe or watch.
#include <fmt/format.h>

#include "cli/parser.h"

namespace sluice::cli {

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

// What it takes is its own: all words behind `trace` go to it.
void Parser::add_trace() {
  CLI::App* app =
      command(app_, "trace", Command::trace, "Watch a running server's requests from outside (eBPF)",
              "  sudo sluice trace --slow 500\n");
  app->set_help_flag();
  app->prefix_command();
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

}  // namespace sluice::cli
