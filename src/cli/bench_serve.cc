// `sluice bench serve`: load on any server with the OpenAI API, and what its clients felt.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/attribution_table.h"
#include "cli/bench_client.h"
#include "cli/commands.h"
#include "cli/completion_load.h"
#include "cli/load_summary.h"
#include "sched/simulator/trace.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

// The first "id" in the answer of /v1/models.
Result<std::string> first_model(const Target& target, TimeNs timeout) {
  Result<Outcome> answer = fetch(target, {"GET", "/v1/models", ""}, timeout);
  if (!answer) return std::move(answer).error();
  if (!answer->error.empty()) return Error{ErrorCode::kIo, "/v1/models: " + answer->error};
  const std::string& body = answer->body;
  size_t at = body.find("\"id\"");
  if (at != std::string::npos) at = body.find('"', at + 4);
  if (at == std::string::npos) return Error{ErrorCode::kIo, "/v1/models names no model; give --model"};
  return body.substr(at + 1, body.find('"', at + 1) - at - 1);
}

Result<PromptForm> probe(const Target& target, const std::string& model, const BenchServeOptions& options,
                         TimeNs timeout) {
  std::string last;
  for (const PromptForm form : {PromptForm::ids, PromptForm::text, PromptForm::plain_text}) {
    const std::string prompt = RandomPrompts(form, options.seed).next(4);
    Result<Outcome> answer = fetch(target, completion(model, prompt, 2, form), timeout);
    if (!answer) return std::move(answer).error();
    if (answer->error.empty() && !answer->events.empty()) return form;
    last = answer->error.empty() ? "no event with a choice came" : answer->error;
  }
  return Error{ErrorCode::kIo, "/v1/completions does not stream: " + last};
}

LoadSummary summarize(const std::vector<Outcome>& outcomes, bool open_loop) {
  LoadSummary s;
  TimeNs begin = INT64_MAX, end = 0;
  std::vector<double> ttft, itl, e2e, late;
  for (const Outcome& o : outcomes) {
    if (open_loop) late.push_back(ms(o.late));
    begin = std::min(begin, o.sent);
    end = std::max(end, o.end);
    if (!o.error.empty() || o.events.empty()) {
      ++s.failed;
      if (s.first_error.empty()) s.first_error = o.error.empty() ? "no event with a choice came" : o.error;
      continue;
    }
    ++s.completed;
    s.tokens += o.tokens();
    s.events += int64_t(o.events.size());
    ttft.push_back(ms(o.events.front() - o.sent));
    e2e.push_back(ms(o.end - o.sent));
    for (size_t i = 1; i < o.events.size(); ++i) itl.push_back(ms(o.events[i] - o.events[i - 1]));
  }
  s.wall_s = seconds(end - begin);
  s.ttft = spread(std::move(ttft)), s.itl = spread(std::move(itl)), s.e2e = spread(std::move(e2e));
  s.sent_late = spread(std::move(late));
  return s;
}

// From the first arrival on. The simulator's own, so that `bench simulate` with the rate and seed of a
// measurement meets the same arrivals: near a machine's capacity the p95 of some hundred requests depends more
// on them than on anything else.
std::vector<TimeNs> arrival_times(double rate, int requests, uint64_t seed) {
  TraceWish wish;
  wish.arrivals.rate = rate, wish.requests = requests, wish.seed = seed;
  const Trace trace = make_trace(wish);
  std::vector<TimeNs> times;
  for (const TracedRequest& r : trace.requests) times.push_back(r.at - trace.requests[0].at);
  return times;
}

Load make_load(const BenchServeOptions& options, const std::string& model, PromptForm form) {
  Load load;
  load.concurrency = options.concurrency;
  load.timeout = TimeNs(options.timeout_ms) * 1'000'000;
  load.keep_alive = !options.no_keep_alive;
  RandomPrompts prompts(form, options.seed, options.shared_prefix);
  for (int i = 0; i < options.requests; ++i)
    load.exchanges.push_back(completion(model, prompts.next(options.input_tokens - options.shared_prefix),
                                        options.output_tokens, form));
  if (options.rate > 0) load.start = arrival_times(options.rate, options.requests, options.seed);
  return load;
}

// What the server says of this run's requests, which began at `began`.
Result<std::string> ask_attribution(const Target& target, TimeNs began, TimeNs timeout) {
  const int window_s = int(std::ceil(seconds(now_ns() - began)));
  const Exchange ask{"GET",
                     fmt::format("/v1/requests/attribution?window_s={}&request_id_prefix={}",
                                 std::max(1, window_s), target.request_id_prefix),
                     ""};
  Result<Outcome> answer = fetch(target, ask, timeout);
  if (!answer) return std::move(answer).error();
  if (!answer->error.empty()) return Error{ErrorCode::kIo, "/v1/requests/attribution: " + answer->error};
  return std::move(answer->body);
}

}  // namespace

int bench_serve(const BenchServeOptions& options) {
  Result<Target> target = parse_target(options.url);
  if (!target) {
    failure(target.error());
    return kExitWrongUse;
  }
  target->api_key = options.api_key;
  target->lane = options.lane;
  target->headers = options.headers;
  const TimeNs timeout = TimeNs(options.timeout_ms) * 1'000'000;
  Result<std::string> model =
      options.model.empty() ? first_model(*target, timeout) : Result<std::string>(options.model);
  if (!model) return failure(model.error());
  const Result<PromptForm> form = probe(*target, *model, options, timeout);
  if (!form) return failure(form.error());
  if (*form != PromptForm::ids)
    fmt::print(stderr, "this server takes no token ids: prompts are words, their length is about right\n");

  if (options.attribution) target->request_id_prefix = fmt::format("bench-{:x}-{:x}-", getpid(), now_ns());
  const Load load = make_load(options, *model, *form);
  const bool tty = isatty(STDERR_FILENO);
  const auto progress = [&](size_t ended) {
    if (tty) fmt::print(stderr, "\r\033[K{} of {} requests", ended, load.exchanges.size());
  };
  const TimeNs began = now_ns();
  Result<std::vector<Outcome>> outcomes = run_load(*target, load, progress);
  if (tty) fmt::print(stderr, "\r\033[K");
  if (!outcomes) return failure(outcomes.error());
  const LoadSummary summary = summarize(*outcomes, options.rate > 0);
  std::string attribution;
  if (options.attribution) {
    Result<std::string> answer = ask_attribution(*target, began, timeout);
    if (!answer) return failure(answer.error());
    attribution = std::move(*answer);
  }
  if (options.json) {
    std::string json;
    JsonWriter out(json);
    out.begin_object();
    write_members(out, summary);
    out.key("events").integer(summary.events);
    if (options.attribution) out.key("attribution").raw(attribution);
    out.end_object();
    fmt::print("{}\n", json);
  } else {
    fmt::print("{}", describe(summary));
    if (options.attribution) {
      const Result<std::string> table = attribution_table(attribution);
      if (!table) return failure(table.error());
      fmt::print("\n{}", *table);
    }
  }
  if (summary.failed == 0) return 0;
  return failure(fmt::format("{} of {} requests failed; the first: {}", summary.failed, outcomes->size(),
                             summary.first_error));
}

}  // namespace sluice::cli
