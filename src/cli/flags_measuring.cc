// The flags of commands that measure, judge and make models.
#include <fmt/format.h>

#include <algorithm>

#include "cli/parser.h"

namespace sluice::cli {
namespace {

// Empty: it is a header. What has a line's end in it would be more than one, or the end of all.
std::string header_fault(const std::string& header) {
  const size_t colon = header.find(':');
  const bool named = colon != std::string::npos && colon > 0 && header.find_first_of(" \t") > colon;
  const bool clean = std::none_of(header.begin(), header.end(), [](unsigned char c) { return c < 0x20; });
  if (!clean) return "a header is one line";
  return named ? "" : fmt::format("'{}' is not \"NAME: VALUE\"", header);
}

}  // namespace

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
  CLI::Option* calibration = app->add_option("--calibration", t.calibration,
                                             "A text, for a model of more than 4 bits: 4-bit weights are made "
                                             "with it (sluice quantize --method "
                                             "awq --targets mlp), before the budget's time begins")
                                 ->type_name("FILE")
                                 ->check(CLI::ExistingFile);
  app->add_option("--eval-data", t.eval_data, "A text that tells what these cost (sluice eval)")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->needs(calibration);
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
  serve->add_option("--api-key", s.api_key, "Bearer token; default: SLUICE_API_KEY");
  serve->add_option("--priority", s.lane, "Lane of all requests (sluice only)")
      ->check(CLI::IsMember({"interactive", "standard", "batch"}));
  serve
      ->add_option("--header", s.headers,
                   "\"NAME: VALUE\" with every request, such as \"X-Env: canary\"; may be given more than once")
      ->check(CLI::Validator(header_fault, "NAME: VALUE"))
      ->allow_extra_args(false);
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

}  // namespace sluice::cli
