// The search of `sluice tune`: the simulator, fitted to the steps that a run recorded, tells what other numbers
// would give.
#include <fmt/format.h>

#include "cli/simulated_server.h"
#include "cli/tune_rig.h"
#include "tune/run_file.h"

namespace sluice::cli {
namespace {

constexpr int kPredictions = 60;
constexpr size_t kKept = 2;
constexpr int kRequestsPerSeat = 6;  // of a closed loop, so that its middle outweighs its ends
constexpr int kMostRequests = 2000;

Trace trace_of(const TuneLoad& load, int context) {
  Trace trace;
  if (load.trace) {
    trace = *load.trace;
  } else {
    TraceWish wish;
    wish.arrivals.kind = Arrivals::Kind::closed, wish.arrivals.concurrency = load.concurrency;
    wish.input = {LengthLaw::Kind::fixed, load.input_tokens, load.input_tokens, 1, 0};
    wish.output = {LengthLaw::Kind::fixed, load.output_tokens, load.output_tokens, 1, 0};
    wish.shared_prefix = load.shared_prefix, wish.seed = load.seed;
    wish.requests = std::clamp(kRequestsPerSeat * load.concurrency, 32, kMostRequests);
    trace = make_trace(wish);
  }
  for (TracedRequest& r : trace.requests) {
    r.input = std::min(r.input, context - 1);
    r.output = std::min(r.output, context - r.input);
  }
  return trace;
}

// A simulated load as a run, so that the same figures are made of it.
tune::Run run_of(const SimulationResult& result, const Trace& trace) {
  tune::Run run;
  run.concurrency = trace.concurrency;
  run.load_s = seconds(result.ended - result.began);
  for (const SimulatedRequest& r : result.requests) {
    const bool done = !r.refused && r.finish == FinishReason::length;
    run.requests.push_back({seconds(r.sent - result.began), seconds(r.first_token - result.began),
                            seconds(r.ended - result.began), r.tokens,
                            done ? tune::Request::End::completed : tune::Request::End::failed});
  }
  std::vector<double> between(result.between_tokens_ms.begin(), result.between_tokens_ms.end());
  std::sort(between.begin(), between.end());
  run.between_tokens_ms = {tune::percentile(between, 0.5), tune::percentile(between, 0.95),
                           tune::percentile(between, 0.99)};
  return run;
}

}  // namespace

std::vector<tune::Variant> TuneRig::candidates(const tune::Run& best) {
  const Result<RecordedSteps> recorded = read_recorded_steps(steps_path(best.configuration));
  if (!recorded) {
    say("  no search: " + recorded.error().message);
    return {};
  }
  const SimulatedServer server = server_of_records(*recorded);
  const auto predict = [&](const tune::Configuration& c) -> tune::Prediction {
    Config config;
    for (const tune::Setting& s : c.settings)
      if (!set_key(config, s.key, s.value)) return {};
    const Result<SimulationSetup> setup = simulation_setup(server, config.model.engine);
    if (!setup) return {};
    const Trace trace = trace_of(load_, setup->layout.max_length);
    const tune::Run run = run_of(simulate(*setup, trace), trace);
    const tune::Figures figures = tune::figures_of(run);
    return {figures.failed == 0 && figures.completed > 0, figures.qps.mean, tune::excess(slo_, run, figures)};
  };
  const tune::Prediction now = predict(best.configuration);
  if (!now.possible) {
    say("  no search: the simulator does not get the load through");
    return {};
  }
  const auto axes = tune::numeric_axes(load_.trace ? 0 : load_.concurrency, server.card);
  std::vector<tune::Variant> variants;
  for (const tune::Candidate& c :
       tune::coordinate_descent(best.configuration, axes, predict, kPredictions, kKept)) {
    tune::Variant v;
    for (const tune::Axis& axis : axes) {
      const std::string value = c.configuration.get(axis.key);
      if (value == best.configuration.get(axis.key)) continue;
      v.name += fmt::format("{}{}={}", v.name.empty() ? "" : " ", axis.key, value.empty() ? "default" : value);
      if (value.empty())
        v.clear.push_back(axis.key);
      else
        v.set.push_back({axis.key, value});
    }
    say(fmt::format("  predicted: {} gives {:.2f} requests/s where it is {:.2f}", v.name, c.prediction.qps,
                    now.qps));
    variants.push_back(std::move(v));
  }
  return variants;
}

}  // namespace sluice::cli
