// `sluice bench simulate`: what a server would make of traffic. The scheduler is the real one, its clock is
// not.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/commands.h"
#include "cli/load_summary.h"
#include "cli/simulated_admission.h"
#include "cli/simulated_server.h"
#include "cli/traffic_flags.h"
#include "engine/batching_settings.h"

namespace sluice::cli {
namespace {

constexpr int kDefaultRequests = 1000;
constexpr const char* kDefaultArrivals = "poisson:10";

Error at_flag(const char* flag, const Error& error) {
  return {error.code, fmt::format("{}: {}", flag, error.message), ""};
}

// A flag that says nothing sensible is wrong use; a file that does not is a failure.
int refused(const Error& error) {
  const int status = failure(error);
  return error.code == ErrorCode::kInvalidArgument ? kExitWrongUse : status;
}

// Everything that a run is made of; a sweep changes a copy.
struct Wish {
  Config config;
  BenchSimulateOptions options;
};

Result<Trace> trace_of(const BenchSimulateOptions& o, int context) {
  const Result<LengthLaw> input = parse_length(o.input_tokens), output = parse_length(o.output_tokens);
  if (!input) return at_flag("--input-tokens", input.error());
  if (!output) return at_flag("--output-tokens", output.error());
  TraceWish wish;
  wish.input = *input, wish.output = *output;
  if (!o.lanes.empty()) {
    const auto lanes = parse_lanes(o.lanes);
    if (!lanes) return at_flag("--lanes", lanes.error());
    wish.lanes = *lanes;
  }
  wish.tenants = o.tenants, wish.shared_prefix = o.shared_prefix, wish.seed = o.seed;
  wish.requests = o.requests ? o.requests : o.duration_s > 0 ? 0 : kDefaultRequests;
  wish.duration_ns = TimeNs(o.duration_s * 1e9);
  Trace trace;
  const std::string said = o.arrivals.empty() ? kDefaultArrivals : o.arrivals;
  if (said.starts_with("file:")) {
    Result<Trace> read = read_trace(said.substr(5));
    if (!read) return at_flag("--arrivals", read.error());
    trace = std::move(*read);
  } else {
    const Result<Arrivals> arrivals = parse_arrivals(said);
    if (!arrivals) return at_flag("--arrivals", arrivals.error());
    wish.arrivals = *arrivals;
    if (arrivals->kind == Arrivals::Kind::closed && o.duration_s > 0)
      return Error{ErrorCode::kInvalidArgument, "--duration: a closed loop ends with --requests"};
    trace = make_trace(wish);
  }
  if (trace.requests.empty())
    return Error{ErrorCode::kInvalidArgument, "--duration: nothing arrives in so short a time"};
  for (TracedRequest& r : trace.requests) {
    if (r.input >= context)
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("--input-tokens: a prompt of {} does not fit the context of {}", r.input, context)};
    r.output = std::min(r.output, context - r.input);  // as the engine does
    r.timeout_ns = TimeNs(o.timeout_ms) * 1'000'000;
  }
  return trace;
}

// A run, and what is said of it.
struct Run {
  SimulationSetup setup;
  Trace trace;
  SimulationResult result;
  LoadSummary summary;
  Spread queue;  // ms
  double wall_s = 0;

  double one_sequence_share() const {
    return result.steps ? double(result.steps_of[1]) / double(result.steps) : 0;
  }
  int64_t prompt_tokens() const {
    int64_t n = 0;
    for (const TracedRequest& r : trace.requests) n += r.input;
    return n;
  }
  int64_t cached_tokens() const {
    int64_t n = 0;
    for (const SimulatedRequest& r : result.requests) n += r.cached_tokens;
    return n;
  }
  double utilization() const { return double(result.device_ns) / double(result.ended - result.began); }
};

bool completed(const SimulatedRequest& r) { return !r.refused && r.finish == FinishReason::length; }

void summarize(Run& run) {
  LoadSummary& s = run.summary;
  std::vector<double> ttft, e2e, queue;
  size_t refused = 0;
  for (const SimulatedRequest& r : run.result.requests) {
    s.tokens += r.tokens;
    refused += r.refused;
    if (!completed(r)) {
      ++s.failed;
      continue;
    }
    ++s.completed;
    ttft.push_back(ms(r.first_token - r.sent));
    e2e.push_back(ms(r.ended - r.sent));
    queue.push_back(ms(r.queue_ns));
  }
  if (s.failed) s.first_error = fmt::format("{} refused, {} out of time", refused, s.failed - refused);
  s.wall_s = seconds(run.result.ended - run.result.began);
  s.ttft = spread(std::move(ttft)), s.e2e = spread(std::move(e2e)), run.queue = spread(std::move(queue));
  s.itl = spread({run.result.between_tokens_ms.begin(), run.result.between_tokens_ms.end()});
}

Result<Run> run_once(const Wish& wish, const SimulatedServer& server) {
  Run run;
  Result<SimulationSetup> setup = simulation_setup(server, wish.config.model.engine);
  if (!setup) return std::move(setup).error();
  run.setup = std::move(*setup);
  run.setup.seed = wish.options.seed;
  if (!wish.options.host.empty())
    if (Status host = parse_host(wish.options.host, run.setup.host); !host)
      return at_flag("--host", host.error());
  Result<Trace> trace = trace_of(wish.options, run.setup.layout.max_length);
  if (!trace) return std::move(trace).error();
  run.trace = std::move(*trace);
  SimulatedAdmission admission(wish.config.server.traffic, run.trace);
  const TimeNs begin = now_ns();
  run.result = simulate(run.setup, run.trace, admission.hooks());
  run.wall_s = seconds(now_ns() - begin);
  summarize(run);
  return run;
}

Result<SimulatedServer> server_of(const Wish& wish) {
  if (!wish.options.fit.empty()) {
    const Result<RecordedSteps> recorded = read_recorded_steps(wish.options.fit);
    if (!recorded) return at_flag("--fit", recorded.error());
    if (recorded->dropped)
      fmt::print(stderr, "{}: {} steps were dropped\n", wish.options.fit, recorded->dropped);
    return server_of_records(*recorded);
  }
  const auto checkpoint = open_checkpoint(wish.config.model.path);
  if (!checkpoint) return checkpoint.error();
  return server_of_card(wish.options.card, **checkpoint, wish.config.model.cpu.threads);
}

// [first, last] sequences and the steps that had so many.
struct Bar {
  int first, last;
  int64_t steps;
};
std::vector<Bar> histogram(const std::vector<int64_t>& counts) {
  std::vector<Bar> bars;
  for (int first = 1; first < int(counts.size()); first *= 2) {
    Bar bar{first, std::min(first * 2 - 1, int(counts.size()) - 1), 0};
    for (int n = bar.first; n <= bar.last; ++n) bar.steps += counts[size_t(n)];
    if (bar.steps) bars.push_back(bar);
  }
  return bars;
}

void write_histogram(JsonWriter& out, const char* name, const std::vector<int64_t>& counts) {
  out.key(name).begin_array();
  for (size_t n = 1; n < counts.size(); ++n) {
    if (!counts[n]) continue;
    out.begin_object().key("sequences").integer(int64_t(n)).key("count").integer(counts[n]).end_object();
  }
  out.end_array();
}

// What a lane's requests met; times of those that completed.
struct LaneSummary {
  Lane lane{};
  int64_t came = 0, refused = 0;
  Spread ttft, e2e;  // ms
};

// Lanes in which something came.
std::vector<LaneSummary> by_lane(const Run& run) {
  std::vector<LaneSummary> out;
  for (int lane = 0; lane < kLanes; ++lane) {
    LaneSummary summary{Lane(lane), 0, 0, {}, {}};
    std::vector<double> ttft, e2e;
    for (size_t i = 0; i < run.trace.requests.size(); ++i) {
      if (run.trace.requests[i].lane != summary.lane) continue;
      const SimulatedRequest& r = run.result.requests[i];
      ++summary.came, summary.refused += r.refused;
      if (!completed(r)) continue;
      ttft.push_back(ms(r.first_token - r.sent)), e2e.push_back(ms(r.ended - r.sent));
    }
    if (summary.came == 0) continue;
    summary.ttft = spread(std::move(ttft)), summary.e2e = spread(std::move(e2e));
    out.push_back(summary);
  }
  return out;
}

void write_fit(JsonWriter& out, const CostFit& fit) {
  out.key("fit")
      .begin_object()
      .key("steps")
      .integer(int64_t(fit.steps))
      .key("knee_rows")
      .integer(fit.cost.knee);
  out.key("seconds").begin_object();
  for (int i = 0; i < kCostTerms; ++i) out.key(kCostTermNames[i]).number(fit.cost.coefficient[i]);
  out.end_object();
  write_number(out, "total_error", fit.total_error), write_number(out, "mean_error", fit.mean_error);
  write_number(out, "residual_share", fit.residual_share);
  out.end_object();
}

std::string describe_fit(const CostFit& fit) {
  std::string out = fmt::format("fitted to {} steps; a step's time in us is\n", fit.steps);
  for (int i = 0; i < kCostTerms; ++i)
    if (fit.cost.coefficient[i] > 0)
      out += fmt::format("  {:>14.6f} a {}{}\n", fit.cost.coefficient[i] * 1e6, kCostTermNames[i],
                         i == 2 ? fmt::format(" of {}", fit.cost.knee) : "");
  return out +
         fmt::format(
             "residual: {:.1f} % on the mean of a step, {:+.1f} % on all together; {:.1f} % of the variance is "
             "left open\n",
             100 * fit.mean_error, 100 * fit.total_error, 100 * fit.residual_share);
}

void write_run(JsonWriter& out, const Run& run) {
  write_members(out, run.summary);
  write_spread(out, "queue_ms", run.queue);
  int64_t refused = 0;
  for (const SimulatedRequest& r : run.result.requests) refused += r.refused;
  out.key("refused").integer(refused);
  out.key("prompt_tokens").integer(run.prompt_tokens()).key("cached_tokens").integer(run.cached_tokens());
  out.key("steps").integer(run.result.steps).key("computed_tokens").integer(run.result.computed_tokens);
  out.key("one_sequence_step_share").number(run.one_sequence_share());
  out.key("preemptions").integer(run.result.preemptions);
  out.key("device_utilization").number(run.utilization());
  out.key("peak_blocks").integer(run.result.peak_blocks).key("blocks").integer(run.setup.blocks);
  out.key("peak_waiting").integer(run.result.peak_waiting);
  write_histogram(out, "step_sequences", run.result.steps_of);
  write_histogram(out, "batches", run.result.batches_of);
  const std::vector<LaneSummary> lanes = by_lane(run);
  out.key("lanes").begin_object();
  for (const LaneSummary& lane : lanes) write_spread(out, lane_name(lane.lane), lane.e2e);
  out.end_object().key("lanes_ttft").begin_object();
  for (const LaneSummary& lane : lanes) write_spread(out, lane_name(lane.lane), lane.ttft);
  out.end_object().key("lanes_refused").begin_object();
  for (const LaneSummary& lane : lanes) out.key(lane_name(lane.lane)).integer(lane.refused);
  out.end_object();
}

std::string describe_run(const Run& run) {
  std::string out = describe(run.summary) + describe_row("in the queue", run.queue);
  const std::vector<LaneSummary> lanes = by_lane(run);
  if (lanes.size() > 1) {
    for (const LaneSummary& lane : lanes)
      out += describe_row(fmt::format("first token, {}", lane_name(lane.lane)).c_str(), lane.ttft);
    for (const LaneSummary& lane : lanes)
      out += describe_row(fmt::format("end to end, {}", lane_name(lane.lane)).c_str(), lane.e2e);
    for (const LaneSummary& lane : lanes)
      if (lane.refused > 0)
        out += fmt::format("{} of {} {} requests refused\n", lane.refused, lane.came, lane_name(lane.lane));
  }
  out += fmt::format(
      "\n{} steps, {:.1f} % of one sequence; device busy {:.1f} %; {} preemptions; at most {} of {} blocks in "
      "use, {} requests waiting\nprefix cache {}: {:.1f} % of {} prompt tokens found\n\n"
      "{:>12}{:>10}{:>8}\n",
      run.result.steps, 100 * run.one_sequence_share(), 100 * run.utilization(), run.result.preemptions,
      run.result.peak_blocks, run.setup.blocks, run.result.peak_waiting,
      run.setup.policy.prefix_cache ? "on" : "off",
      100 * double(run.cached_tokens()) / double(run.prompt_tokens()), run.prompt_tokens(), "sequences",
      "steps", "share");
  for (const Bar& bar : histogram(run.result.steps_of))
    out += fmt::format(
        "{:>12}{:>10}{:>7.1f}%\n",
        bar.first == bar.last ? fmt::format("{}", bar.first) : fmt::format("{}-{}", bar.first, bar.last),
        bar.steps, 100 * double(bar.steps) / double(run.result.steps));
  return out;
}

// A key of --sweep and its values.
struct Sweep {
  std::string key;
  std::vector<std::string> values;
};

Result<Sweep> parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  Sweep sweep{text.substr(0, equals), {}};
  for (size_t at = equals; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    sweep.values.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  const bool empty =
      std::any_of(sweep.values.begin(), sweep.values.end(), [](const auto& v) { return v.empty(); });
  if (equals == std::string::npos || sweep.key.empty() || sweep.values.empty() || empty)
    return Error{ErrorCode::kInvalidArgument, fmt::format("--sweep: expected KEY=A,B,C, got '{}'", text)};
  return sweep;
}

Status set_swept(Wish& wish, const std::string& key, const std::string& value) {
  BenchSimulateOptions& o = wish.options;
  if (key == "rate")
    o.arrivals = "poisson:" + value;
  else if (key == "concurrency")
    o.arrivals = "closed:" + value;
  else if (key == "input_tokens")
    o.input_tokens = value;
  else if (key == "output_tokens")
    o.output_tokens = value;
  else if (key == "card" && !o.card.empty())
    o.card = value;
  else if (Status set = set_key(wish.config, key, value); !set)
    return Error{ErrorCode::kInvalidArgument, fmt::format("--sweep {}: {}", key, set.error().message)};
  return {};
}

void print_speed(int64_t steps, double wall_s, double simulated_s) {
  fmt::print(stderr, "{:.1f} simulated seconds in {:.2f}: {:.0f} steps a second\n", simulated_s, wall_s,
             double(steps) / std::max(1e-9, wall_s));
}

int print_runs(const Wish& wish, const std::vector<Sweep>& sweeps) {
  const Sweep none{"", {""}};
  const Sweep& outer = sweeps.empty() ? none : sweeps[0];
  const Sweep& inner = sweeps.size() < 2 ? none : sweeps[1];
  std::string json;
  JsonWriter out(json);
  out.begin_object().key("sweep").begin_array();
  const size_t wide = outer.key.size() + 2, wide_inner = inner.key.empty() ? 0 : inner.key.size() + 2;
  std::string table =
      fmt::format("{:>{}}{:>{}}{:>12}{:>12}{:>10}{:>10}{:>10}{:>8}{:>9}\n", outer.key, wide, inner.key,
                  wide_inner, "requests/s", "tokens/s", "mean ms", "p95 ms", "p99 ms", "failed", "busy");
  std::optional<SimulatedServer> server;
  for (const std::string& a : outer.values) {
    for (const std::string& b : inner.values) {
      Wish one = wish;
      if (Status set = set_swept(one, outer.key, a); !set) return refused(set.error());
      if (!inner.key.empty())
        if (Status set = set_swept(one, inner.key, b); !set) return refused(set.error());
      if (!server || one.options.card != wish.options.card) {
        Result<SimulatedServer> made = server_of(one);
        if (!made) return refused(made.error());
        server = std::move(*made);
      }
      const Result<Run> run = run_once(one, *server);
      if (!run) return refused(run.error());
      const LoadSummary& s = run->summary;
      table += fmt::format("{:>{}}{:>{}}{:>12.1f}{:>12.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>8}{:>8.1f}%\n", a, wide,
                           b, wide_inner, s.qps(), s.output_tok_s(), s.e2e.mean, s.e2e.p95, s.e2e.p99, s.failed,
                           100 * run->utilization());
      out.begin_object().key(outer.key).string(a);
      if (!inner.key.empty()) out.key(inner.key).string(b);
      write_run(out, *run);
      out.end_object();
    }
  }
  out.end_array().end_object();
  fmt::print("{}", wish.options.json ? json + "\n" : table);
  return 0;
}

int print_fit(const SimulatedServer& server, bool as_json) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  write_fit(out, *server.fit);
  out.end_object();
  fmt::print("{}\n", as_json ? json : server.description + "; " + describe_fit(*server.fit));
  return 0;
}

int print_one(const Wish& wish) {
  const Result<SimulatedServer> server = server_of(wish);
  if (!server) return refused(server.error());
  if (server->fit && wish.options.arrivals.empty()) return print_fit(*server, wish.options.json);
  const Result<Run> run = run_once(wish, *server);
  if (!run) return refused(run.error());
  if (wish.options.json) {
    std::string json;
    JsonWriter out(json);
    out.begin_object();
    write_run(out, *run);
    if (server->fit) write_fit(out, *server->fit);
    out.end_object();
    fmt::print("{}\n", json);
  } else {
    fmt::print("{}; {}\n", server->description, describe(run->setup.policy.batching));
    if (server->fit) fmt::print("{}", describe_fit(*server->fit));
    fmt::print("\n{}", describe_run(*run));
  }
  print_speed(run->result.steps, run->wall_s, run->summary.wall_s);
  return 0;
}

}  // namespace

int bench_simulate(const Config& config, const BenchSimulateOptions& options) {
  std::vector<Sweep> sweeps;
  for (const std::string& text : options.sweeps) {
    Result<Sweep> sweep = parse_sweep(text);
    if (!sweep) return refused(sweep.error());
    sweeps.push_back(std::move(*sweep));
  }
  const Wish wish{config, options};
  return sweeps.empty() ? print_one(wish) : print_runs(wish, sweeps);
}

}  // namespace sluice::cli
