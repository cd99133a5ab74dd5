// `sluice tune`: from the collapsed start to full speed, step by step, on this machine.
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/commands.h"
#include "cli/json_number.h"
#include "cli/memory_plan.h"
#include "cli/server_process.h"
#include "cli/signals.h"
#include "cli/traffic_flags.h"
#include "cli/tune_rig.h"
#include "model/checkpoint.h"
#include "model/dummy_checkpoint.h"
#include "model/weight_bytes.h"
#include "tensor/card_watch.h"
#include "tune/page.h"
#include "tune/report.h"

namespace sluice::cli {
namespace {

Error in_folder(const std::string& folder, const std::string& what) {
  return {ErrorCode::kIo, fmt::format("{}: {}", folder, what)};
}

// One session at a time works in a folder.
Result<int> lock_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return in_folder(folder, error.message());
  const int lock = open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return in_folder(folder, std::strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return in_folder(folder, "another sluice tune works in this folder");
  }
  return lock;
}

bool on_card(const std::string& device) {
  if (device.empty() || device == "auto") return watch_card(0) != nullptr;
  return device.starts_with("cuda");
}

// Of the layers' weights, as they are kept once loaded.
int weight_bits(const Checkpoint& checkpoint) {
  double bits = 0, elements = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (t.shape.size() < 2 || t.shape[0] == checkpoint.spec().vocab) continue;
    double here = 1;
    for (const int64_t d : t.shape) here *= double(d);
    elements += here, bits += 8.0 * double(canonical_bytes(t.canonical, int64_t(here)));
  }
  // Scales and minima take up to a bit and a half of a weight.
  return elements > 0 ? std::max(1, int(bits / elements - 0.5)) : 16;
}

// Keys that are of the user's own server, and not of those that are measured.
bool is_private(const std::string& key) {
  for (const char* prefix : {"model.path", "server.host", "server.port", "server.api_keys", "server.tls.",
                             "tracing.", "log.", "observe.record_steps"})
    if (key.starts_with(prefix)) return true;
  return false;
}

tune::Configuration start_of(const Config& config, const TuneOptions& options, const tune::Place& place) {
  tune::Configuration start{config.model.path, {}};
  if (!options.from_config) start = tune::collapsed_start(config.model.path, place);
  for (const Key* key : changed_keys(Config{}, config))
    if (!is_private(key->name)) start.set(key->name, key_value(config, *key));
  return start;
}

tune::Place place_of(const Config& config, const Checkpoint& checkpoint) {
  tune::Place place;
  place.card = on_card(config.model.device);
  place.cores = std::max(1, int(std::thread::hardware_concurrency()));
  place.context = checkpoint.spec().context;
  place.dummy = config.model.path.starts_with(kDummyPrefix);
  place.weight_bits = weight_bits(checkpoint);
  return place;
}

// 4-bit weights of a real model, made once in a folder; and what they cost, in words.
Status make_small(const Config& config, const TuneOptions& options, tune::Place& place, std::string& accuracy) {
  if (options.exact || place.dummy || place.weight_bits <= 4) return {};
  if (options.calibration.empty()) {
    place.quantized_refusal = "4-bit weights need a text to measure activations on: --calibration FILE";
    return {};
  }
  const std::string out = options.out + "/awq";
  if (!std::filesystem::exists(out + "/config.json")) {
    fmt::print(stderr, "4-bit weights are made in {}\n", out);
    std::vector<std::string> words = {
        "quantize",      config.model.path,  "-o", out, "--method", "awq", "--targets", "mlp",
        "--calibration", options.calibration};
    if (!options.eval_data.empty()) words.insert(words.end(), {"--eval-data", options.eval_data});
    if (const auto made = run_self(words); !made) return made.error();
  }
  place.quantized_model = out;
  if (options.eval_data.empty()) {
    accuracy = "not judged (--eval-data FILE)";
    return {};
  }
  const auto judged = run_self(
      {"eval", out, "--baseline", config.model.path, "--data", options.eval_data, "--batch", "0", "--json"});
  if (!judged) return judged.error();
  const auto json = JsonDocument::parse(*judged);
  if (!json) return Error{ErrorCode::kInternal, "sluice eval: " + json.error().message};
  const JsonView found = json->root();
  accuracy = fmt::format("perplexity {:.3f}, mean KL {:.4f} nats, the same likeliest token for {:.1f} %",
                         number_of(found, "perplexity"), number_of(found, "mean_kl"),
                         100 * number_of(found, "top1_agreement"));
  return {};
}

Result<TuneLoad> load_of(const TuneOptions& options, const Checkpoint& checkpoint, int context) {
  TuneLoad load;
  load.concurrency = options.concurrency;
  load.input_tokens = options.input_tokens, load.output_tokens = options.output_tokens;
  load.shared_prefix = options.shared_prefix;
  load.vocabulary = std::max(1, checkpoint.spec().vocab), load.seed = options.seed;
  int longest = load.input_tokens + load.output_tokens;
  if (!options.trace.empty()) {
    Result<Trace> trace = read_trace(options.trace);
    if (!trace) return Error{trace.error().code, "--trace: " + trace.error().message};
    longest = 0;
    for (const TracedRequest& r : trace->requests) longest = std::max(longest, r.input + r.output);
    load.trace = std::move(*trace), load.trace_path = options.trace;
  }
  if (longest > context)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("a request of {} tokens does not fit the context of {}", longest, context)};
  return load;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) return Error{ErrorCode::kIo, path + ": cannot be written"};
  return {};
}

// The final configuration as a file to serve with, over what the user's own settings say.
std::string yaml_of(const Config& config, const tune::Configuration& last) {
  Config out = config;
  out.log_level = Config{}.log_level;
  out.model.path = last.model;
  for (const tune::Setting& s : last.settings) (void)set_key(out, s.key, s.value);
  return print_config(out);
}

Status write_report(const Config& config, const TuneOptions& options, const tune::ReportFacts& facts,
                    const tune::Session& session) {
  if (Status ok = write_file(options.out + "/result.json", tune::result_json(facts, session)); !ok) return ok;
  if (Status ok = write_file(options.out + "/index.html", tune::page(facts, session)); !ok) return ok;
  return write_file(options.out + "/sluice.yaml", yaml_of(config, session.final().run.configuration));
}

// What is to be known before the first server starts.
struct Prepared {
  tune::Place place;
  int context = 0;
  TuneLoad load;
  tune::SessionWish wish;
  tune::ReportFacts facts;
  std::vector<int> long_contexts, beyond_context;
};

// All that can be refused without touching anything.
Result<Prepared> prepare(const Config& config, const TuneOptions& options) {
  Prepared p;
  auto checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return std::move(checkpoint).error();
  p.place = place_of(config, **checkpoint);
  const int context = config.model.engine.max_context ? config.model.engine.max_context : p.place.context;
  p.context = std::min(context, p.place.context);
  Result<TuneLoad> load = load_of(options, **checkpoint, context);
  if (!load) return std::move(load).error();
  p.load = std::move(*load);
  Result<std::vector<tune::Slo>> slo = tune::parse_slo(options.slo);
  if (!slo) return std::move(slo).error();
  Result<std::vector<std::string>> order = tune::parse_order(options.order);
  if (!order) return std::move(order).error();
  p.facts.order = *order, p.facts.slo = p.wish.slo = *slo;
  p.wish.start = start_of(config, options, p.place);
  p.wish.budget_s = p.facts.budget_s = options.budget_s;
  for (const int tokens : options.long_contexts)
    if (tokens > p.context)
      p.beyond_context.push_back(tokens);
    else if (tokens > 0)
      p.long_contexts.push_back(tokens);
  p.wish.long_contexts = !p.long_contexts.empty();
  p.wish.equal_loads = p.load.trace.has_value();
  p.facts.model = config.model.path, p.facts.load = p.load.describe();
  p.facts.load_command = p.load.command(), p.facts.command = options.words;
  return p;
}

}  // namespace

int tune_command(const Config& config, const TuneOptions& options) {
  Result<Prepared> prepared = prepare(config, options);
  if (!prepared) {
    const int status = failure(prepared.error());
    return prepared.error().code == ErrorCode::kInvalidArgument ? kExitWrongUse : status;
  }
  const Result<int> lock = lock_folder(options.out);
  if (!lock) return failure(lock.error());
  if (Status made = make_small(config, options, prepared->place, prepared->facts.accuracy); !made)
    return failure(made.error());
  const tune::PlanWish plan{options.exact, prepared->load.trace ? 0 : options.concurrency,
                            prepared->facts.order};
  prepared->wish.steps = tune::plan_steps(plan, config.model.path, prepared->place);
  // The default's lengths are for any model.
  if (!prepared->beyond_context.empty() && options.long_contexts != TuneOptions{}.long_contexts)
    fmt::print(stderr, "--long-contexts: {} not measured: the context has {} tokens\n",
               fmt::join(prepared->beyond_context, ", "), prepared->context);
  std::signal(SIGPIPE, SIG_IGN);
  Signals signals(Signals::Watch::both);
  TuneRig rig(options.out, prepared->load, options.port, prepared->long_contexts, prepared->wish.slo);
  if (Status kept = rig.read_kept(); !kept) return failure(kept.error());

  const tune::Session session = tune::tune(prepared->wish, rig);
  if (!session.failure.empty()) return failure(session.failure);
  tune::ReportFacts facts = prepared->facts;
  facts.device = rig.device(), facts.date = now_text();
  auto orders = tune::remember_gains(options.out + "/orders.jsonl", tune::gains_of(facts.order, session));
  if (!orders) return failure(orders.error());
  facts.orders = std::move(*orders);
  if (Status written = write_report(config, options, facts, session); !written) return failure(written.error());
  fmt::print(
      "{}\nreport: {}/index.html, result.json, samples.jsonl\nserve with: sluice serve --config "
      "{}/sluice.yaml\n({})\n",
      tune::table(facts, session), options.out, options.out, tune::advice(session));
  if (session.interrupted) return 128 + SIGINT;
  if (const std::string missed = tune::missed_slo(facts, session); !missed.empty()) return failure(missed);
  return 0;
}

}  // namespace sluice::cli
