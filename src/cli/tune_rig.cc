#include "cli/tune_rig.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/sha256.h"
#include "cli/completion_load.h"
#include "cli/json_number.h"
#include "cli/load_summary.h"
#include "cli/signals.h"
#include "tune/run_file.h"

namespace sluice::cli {
namespace {

constexpr TimeNs kTimeout_ns = 3600'000'000'000;  // of a request: collapsed servers may take long
constexpr TimeNs kAskTimeout_ns = 30'000'000'000;
constexpr int kLongAnswer = 64;

// Sum over the labels of a metric in Prometheus text.
double metric(const std::string& text, const std::string& name) {
  double sum = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    sum += std::strtod(std::string(line.substr(line.rfind(' ') + 1)).c_str(), nullptr);
  }
  return sum;
}

// Buckets of a histogram, each by itself and not with those below it.
std::vector<tune::BatchBar> bars(const std::string& text, const std::string& name) {
  std::vector<tune::BatchBar> out;
  double below = 0;
  const std::string bucket = name + "_bucket{";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t le = line.find("le=\"");
    if (!line.starts_with(bucket) || le == std::string::npos) continue;
    const double upto = line.compare(le + 4, 4, "+Inf") == 0 ? 0 : std::strtod(line.c_str() + le + 4, nullptr);
    const double all = std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr);
    if (all > below) out.push_back({upto, all - below});
    below = all;
  }
  return out;
}

tune::Request request_of(const Outcome& o, TimeNs begin) {
  tune::Request r;
  r.sent_s = seconds(o.sent - begin);
  r.ended_s = seconds(o.end - begin);
  if (!o.events.empty()) r.first_s = seconds(o.events.front() - begin);
  // Of an open answer the count has not come; events are about a token each.
  r.tokens = o.tokens();
  r.end = o.open                                 ? tune::Request::End::open
          : !o.error.empty() || o.events.empty() ? tune::Request::End::failed
                                                 : tune::Request::End::completed;
  return r;
}

// "MODEL is served at URL (context N, DEVICE, SET)": what is behind the context.
std::string device_in(const std::string& said) {
  const size_t comma = said.find(", ", said.rfind('('));
  if (comma == std::string::npos) return "";
  return said.substr(comma + 2, said.rfind(')') - comma - 2);
}

Result<std::string> ask(const Target& target, const std::string& path) {
  Result<Outcome> answer = fetch(target, {"GET", path, ""}, kAskTimeout_ns);
  if (!answer) return std::move(answer).error();
  if (!answer->error.empty()) return Error{ErrorCode::kIo, path + ": " + answer->error};
  return std::move(answer->body);
}

// What requests have to call the model: weights of fewer bits have another name.
Result<std::string> served_name(const Target& target) {
  const Result<std::string> said = ask(target, "/v1/models");
  if (!said) return said.error();
  const Result<JsonDocument> models = JsonDocument::parse(*said);
  if (!models) return models.error();
  const auto data = models->root().find("data");
  if (!data || data->size() == 0) return Error{ErrorCode::kIo, "/v1/models names no model"};
  return std::string(data->at(0).find("id")->string().value_or(""));
}

}  // namespace

std::string TuneLoad::describe() const {
  if (trace) return fmt::format("trace {} ({} requests)", trace_path, trace->requests.size());
  return fmt::format("concurrency {}, {} tokens in, {} out{}", concurrency, input_tokens, output_tokens,
                     shared_prefix ? fmt::format(", {} of them shared", shared_prefix) : "");
}

std::string TuneLoad::command() const {
  if (trace) return {};
  return fmt::format(
      "sluice bench serve --url URL --concurrency {} --requests {} --input-tokens {} --output-tokens {}{}",
      concurrency, 8 * concurrency, input_tokens, output_tokens,
      shared_prefix ? fmt::format(" --shared-prefix {}", shared_prefix) : "");
}

TuneRig::TuneRig(std::string folder, TuneLoad load, int port, std::vector<int> long_contexts,
                 std::vector<tune::Slo> slo)
    : folder_(std::move(folder)),
      load_(std::move(load)),
      port_(port),
      long_(std::move(long_contexts)),
      slo_(std::move(slo)),
      began_(now_ns()),
      tty_(isatty(STDERR_FILENO)) {}

double TuneRig::spent_s() const { return seconds(now_ns() - began_); }
bool TuneRig::interrupted() const { return Signals::count() > 0; }

void TuneRig::say(const std::string& line) {
  fmt::print(stderr, "{}{:6.1f} s  {}\n", tty_ ? "\r\033[K" : "", spent_s(), line);
  std::fflush(stderr);
}

void TuneRig::progress(const std::string& text) {
  if (!tty_) return;
  fmt::print(stderr, "\r\033[K{:6.1f} s    {}", spent_s(), text);
  std::fflush(stderr);
}

Status TuneRig::read_kept() {
  Result<std::vector<tune::Run>> runs = tune::read_runs(folder_ + "/samples.jsonl");
  if (!runs) return std::move(runs).error();
  kept_ = std::move(*runs);
  return {};
}

bool TuneRig::kept_run(const tune::Configuration& configuration, const std::string& load,
                       tune::Run& out) const {
  const auto run = std::find_if(kept_.rbegin(), kept_.rend(), [&](const tune::Run& r) {
    return r.configuration == configuration && r.load == load &&
           (!r.long_contexts.empty() || is_told(tune::figures_of(r)));
  });
  if (run == kept_.rend()) return false;
  out = *run;
  return true;
}

std::string TuneRig::steps_path(const tune::Configuration& configuration) const {
  std::string words;
  for (const std::string& word : tune::serve_words(configuration)) words += word + '\n';
  const Sha256 digest = sha256(words);
  return fmt::format("{}/steps-{:02x}{:02x}{:02x}{:02x}.jsonl", folder_, digest[0], digest[1], digest[2],
                     digest[3]);
}

Result<std::unique_ptr<ServerProcess>> TuneRig::start_server(const tune::Configuration& configuration) {
  std::vector<std::string> words = tune::serve_words(configuration);
  for (const std::string& word : {std::string("--port"), fmt::format("{}", port_),
                                  std::string("--record-steps"), steps_path(configuration)})
    words.push_back(word);
  progress("the server starts");
  return ServerProcess::start(words, folder_ + "/server.log", [this] { return interrupted(); });
}

tune::Run TuneRig::measure(const tune::Configuration& configuration, double seconds_of_load) {
  tune::Run run;
  if (kept_run(configuration, load_.describe(), run)) {
    if (device_.empty()) device_ = run.device;
    say("  (measured before: taken from samples.jsonl)");
    return run;
  }
  run.configuration = configuration, run.load = load_.describe();
  run.concurrency = load_.trace ? 0 : load_.concurrency;
  const TimeNs begin = now_ns();
  auto server = start_server(configuration);
  if (!server) {
    run.failure = "the server does not start: " + server.error().message;
    return run;
  }
  run.ready_s = seconds(now_ns() - begin);
  run.device = device_in((*server)->said());
  if (device_.empty()) device_ = run.device;
  drive(**server, seconds_of_load, run);
  if (!(*server)->is_alive()) run.failure = "the server ended under the load";
  server->reset();
  if (interrupted() || !run.failure.empty()) return run;
  if (Status kept = tune::append_run(folder_ + "/samples.jsonl", run); !kept) say(kept.error().message);
  kept_.push_back(run);
  return run;
}

void TuneRig::drive(ServerProcess& server, double seconds_of_load, tune::Run& run) {
  const Result<Target> target = parse_target(server.url());
  CHECK(target.ok());
  const Result<std::string> model = served_name(*target);
  if (!model) {
    run.failure = model.error().message;
    return;
  }

  Load load;
  load.concurrency = std::max(1, load_.concurrency);
  load.timeout = kTimeout_ns;
  load.stop_after = TimeNs(seconds_of_load * 1e9);
  load.is_cancelled = [&] { return interrupted() || !server.is_alive(); };
  // Each load its own prompts: none is to find another's in the cache.
  RandomPrompts prompts(PromptForm::ids, load_.seed + 1000 * ++loads_, load_.shared_prefix, load_.vocabulary);
  if (load_.trace) {
    for (const TracedRequest& r : load_.trace->requests) {
      load.exchanges.push_back(completion(*model, prompts.next(r.input), r.output, PromptForm::ids));
      load.start.push_back(r.at - load_.trace->requests[0].at);
    }
  } else {
    load.next = [&](size_t) {
      return completion(*model, prompts.next(load_.input_tokens - load_.shared_prefix), load_.output_tokens,
                        PromptForm::ids);
    };
  }
  const TimeNs begin = now_ns();
  const auto show = [&](size_t ended) {
    progress(fmt::format("{:.0f} of {:.0f} s of load, {} answers", seconds(now_ns() - begin), seconds_of_load,
                         ended));
  };
  const Result<std::vector<Outcome>> outcomes = run_load(*target, load, show);
  run.load_s = seconds(now_ns() - begin);
  if (!outcomes) {
    run.failure = outcomes.error().message;
    return;
  }
  std::vector<double> between;
  for (const Outcome& o : *outcomes) {
    if (o.sent == 0) continue;  // of a trace that was not played to its end
    run.requests.push_back(request_of(o, begin));
    for (size_t i = 1; i < o.events.size(); ++i) between.push_back(ms(o.events[i] - o.events[i - 1]));
  }
  const Spread itl = spread(std::move(between));
  if (std::isfinite(itl.p50)) run.between_tokens_ms = {itl.p50, itl.p95, itl.p99};
  if (!interrupted()) ask_server(server.url(), run.load_s, run);
}

void TuneRig::ask_server(const std::string& url, double load_s, tune::Run& run) {
  const Result<Target> target = parse_target(url);
  const int window_s = std::clamp(int(std::floor(load_s)), 1, 120);
  if (auto said = ask(*target, fmt::format("/v1/diagnosis?window_s={}", window_s)); said) run.diagnosis = *said;
  if (auto said = ask(*target, fmt::format("/v1/requests/attribution?window_s={}", window_s)); said)
    run.attribution = *said;
  const auto metrics = ask(*target, "/metrics?aliases=0");
  if (!metrics) return;
  run.batches = bars(*metrics, "sluice_step_sequences");
  run.steps = metric(*metrics, "sluice_steps_total");
  run.steps_of_one = metric(*metrics, "sluice_steps_of_one_sequence_total");
  run.prefix_looked_up = metric(*metrics, "sluice_prefix_cache_queries_total");
  run.prefix_found = metric(*metrics, "sluice_prefix_cache_hits_total");
}

// Each length twice with the same prompt, one request at a time: the second finds what the cache kept of the
// first.
std::vector<tune::LongContext> TuneRig::long_contexts(const tune::Configuration& configuration, double most_s) {
  tune::Run run;
  const std::string load = fmt::format("long contexts of {}", fmt::join(long_, ", "));
  if (kept_run(configuration, load, run)) return run.long_contexts;
  run.configuration = configuration, run.load = load;
  auto server = start_server(configuration);
  const auto target = server ? parse_target((*server)->url()) : Result<Target>(server.error());
  const auto model = target ? served_name(*target) : Result<std::string>(target.error());
  if (!model) {
    say("    not measured: " + model.error().message);
    return {};
  }
  const TimeNs begin = now_ns();
  for (const int tokens : long_) {
    if (seconds(now_ns() - begin) > most_s || interrupted()) break;
    RandomPrompts prompts(PromptForm::ids, load_.seed + uint64_t(tokens), 0, load_.vocabulary);
    const int answer = std::min(kLongAnswer, tokens / 2);
    const Exchange exchange = completion(*model, prompts.next(tokens - answer), answer, PromptForm::ids);
    const auto found = [&](const char* name) {
      const auto text = ask(*target, "/metrics?aliases=0");
      return text ? metric(*text, name) : 0;
    };
    tune::LongContext row{tokens, 0, 0, 0};
    progress(fmt::format("{} tokens of context", tokens));
    for (int time = 0; time < 2; ++time) {
      const double hits = found("sluice_prefix_cache_hits_total");
      const Result<Outcome> o = fetch(*target, exchange, kTimeout_ns);
      if (!o || !o->error.empty() || o->events.size() < 2) {
        say(fmt::format("    {} tokens: {}", tokens,
                        !o                 ? o.error().message
                        : o->error.empty() ? "an answer of less than two events"
                                           : o->error));
        break;
      }
      row.tok_s = double(o->events.size() - 1) / seconds(o->events.back() - o->events.front());
      row.first_token_ms = ms(o->events.front() - o->sent);
      row.hit_share = (found("sluice_prefix_cache_hits_total") - hits) / double(tokens - answer);
    }
    if (row.tok_s > 0) run.long_contexts.push_back(row);
  }
  server->reset();
  if (run.long_contexts.size() == long_.size())
    if (Status kept = tune::append_run(folder_ + "/samples.jsonl", run); !kept) say(kept.error().message);
  return run.long_contexts;
}

}  // namespace sluice::cli
