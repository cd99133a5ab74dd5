#include "tune/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json.h"

namespace sluice::tune {
namespace {

// Of the time, what measurements take: the start runs longest, since its requests do.
constexpr double kStartWeight = 2;
constexpr double kLongWeight = 1;
constexpr size_t kSearchRuns = 2;
constexpr double kMostLoad_s = 60;

class Course {
 public:
  Course(const SessionWish& wish, Rig& rig) : wish_(wish), rig_(rig) {
    for (const Step& step : wish.steps) left_ += double(step.variants.size());
    left_ += kSearchRuns + (wish.long_contexts ? 2 * kLongWeight : 0.0);
  }

  Session run() {
    if (!measure_start()) return finished();
    for (const Step& step : wish_.steps) take(step);
    search();
    long_contexts();
    return finished();
  }

 private:
  // Seconds of load for a measurement of that weight, of those that are left; beside it each takes what
  // starting and stopping took so far. Where the time does not do for all, those that come first get the least,
  // and the last ones nothing. Below 0: none.
  double seconds_for(double weight) const {
    const double time = wish_.budget_s - rig_.spent_s();
    const double all = std::max(weight, left_), fit = std::floor(time / (overhead_s_ + kLeastLoad_s));
    if (fit < 1) return -1;
    return std::min(kMostLoad_s * weight,
                    std::max(kLeastLoad_s, weight * (time / std::min(all, fit) - overhead_s_)));
  }

  Run measured(const Configuration& configuration, double weight) {
    const double before = rig_.spent_s();
    double load_s = std::max(kLeastLoad_s, seconds_for(weight));
    if (wish_.equal_loads) load_s = equal_load_s_ = equal_load_s_ > 0 ? equal_load_s_ : load_s;
    Run run = rig_.measure(configuration, load_s);
    left_ -= weight;
    if (run.failure.empty()) overhead_s_ = std::max(overhead_s_, rig_.spent_s() - before - run.load_s);
    return run;
  }

  bool measure_start() {
    StepResult result{.name = std::string(kStartName), .title = "The start"};
    const double weight = wish_.equal_loads ? 1 : kStartWeight;
    left_ += weight;
    rig_.say("start");
    Run run = measured(wish_.start, weight);
    if (rig_.interrupted()) run.failure = "interrupted before the start was measured";
    session_.failure = run.failure;
    if (!run.failure.empty()) return false;
    result.measured = result.kept = true;
    Figures figures = figures_of(run);
    if (is_told(figures)) {
      result.reason = "where it begins";
      say_figures(figures, "");
    } else {
      result.reason = judge({run, figures}, {run, figures}, {}).reason;
      say_figures(figures, result.reason);
    }
    result.tried.push_back({result.title, std::move(run), std::move(figures), {}});
    push(std::move(result));
    return true;
  }

  void say_figures(const Figures& f, const std::string& verdict) {
    if (!is_told(f)) return rig_.say("  " + verdict);
    rig_.say(fmt::format("  {:.2f} requests/s, {:.0f} tokens/s, p95 {}{:.0f} ms{}{}", f.qps.mean, f.tok_s.mean,
                         f.p95_at_least ? "at least " : "", f.p95_ms.mean, verdict.empty() ? "" : ": ",
                         verdict));
  }

  // What of the course cannot be measured any more; empty: it can.
  std::string hindrance() {
    if (rig_.interrupted()) return "interrupted before it";
    if (seconds_for(1) < kLeastLoad_s)
      return fmt::format("left out: the budget of {:.0f} s is spent", wish_.budget_s);
    return {};
  }

  void take(const Step& step) {
    StepResult result{.name = step.name, .title = step.title};
    const Tried before = session_.final();
    result.causes_before = causes_of(before.run.diagnosis);
    for (const std::string& cause : step.removes)
      if (result.named_before.empty() &&
          std::count(result.causes_before.begin(), result.causes_before.end(), cause))
        result.named_before = cause;
    if (step.variants.empty()) result.reason = step.nothing.empty() ? "there is nothing to try" : step.nothing;
    for (const Variant& variant : step.variants) try_variant(variant, before, result);
    choose(before, result);
    push(std::move(result));
  }

  void try_variant(const Variant& variant, const Tried& before, StepResult& result) {
    const Configuration configuration = with(before.run.configuration, variant);
    if (configuration == before.run.configuration) {
      result.reason = "it is set like that already";
      left_ -= 1;
      return;
    }
    if (const std::string why = hindrance(); !why.empty()) {
      if (result.tried.empty()) result.reason = why;
      left_ -= 1;
      session_.left_out.push_back(fmt::format("{} ({})", result.name, variant.name));
      return;
    }
    rig_.say(fmt::format("{}: {}", result.name, variant.name));
    Run run = measured(configuration, 1);
    if (rig_.interrupted()) {
      if (result.tried.empty()) result.reason = "interrupted";
      session_.left_out.push_back(fmt::format("{} ({})", result.name, variant.name));
      return;
    }
    Figures figures = figures_of(run);
    Verdict verdict = judge({before.run, before.figures}, {run, figures}, wish_.slo);
    if (run.failure.empty())
      say_figures(figures, verdict.reason);
    else
      rig_.say("  " + run.failure);
    result.tried.push_back({variant.name, std::move(run), std::move(figures), std::move(verdict)});
    result.measured = true;
  }

  // The best of what is kept, else of what runs.
  void choose(const Tried& before, StepResult& result) {
    if (result.tried.empty()) return;
    for (size_t i = 1; i < result.tried.size(); ++i) {
      const Tried &a = result.tried[i], &b = result.tried[result.best];
      const bool beats = judge({b.run, b.figures}, {a.run, a.figures}, wish_.slo).keep;
      if (a.verdict.keep != b.verdict.keep ? a.verdict.keep : beats) result.best = i;
    }
    result.kept = result.chosen().verdict.keep;
    result.reason = result.chosen().verdict.reason;
    if (result.tried.size() > 1) result.reason = result.chosen().name + ": " + result.reason;
  }

  void search() {
    Step step{std::string(kSearchName), "Search over numbers", {"queue-saturation"}, {}, ""};
    if (const std::string why = hindrance(); !why.empty()) {
      step.nothing = why;
      session_.left_out.emplace_back(kSearchName);
    } else {
      rig_.say("search: on the simulator, fitted to the steps of the best run");
      step.variants = rig_.candidates(session_.final().run);
      if (step.variants.size() > kSearchRuns) step.variants.resize(kSearchRuns);
      step.nothing = "the simulator finds nothing better";
    }
    left_ -= kSearchRuns - double(step.variants.size());
    take(step);
  }

  void long_contexts() {
    if (!wish_.long_contexts) return;
    const auto measure = [&](const Configuration& configuration,
                             const char* which) -> std::vector<LongContext> {
      if (const std::string why = hindrance(); !why.empty()) {
        session_.left_out.push_back(fmt::format("long contexts, {}", which));
        return {};
      }
      rig_.say(fmt::format("long contexts, {}", which));
      auto found = rig_.long_contexts(configuration, seconds_for(kLongWeight));
      left_ -= kLongWeight;
      return found;
    };
    session_.long_before = measure(session_.start().run.configuration, "before");
    session_.long_after = measure(session_.final().run.configuration, "after");
  }

  void push(StepResult result) {
    session_.steps.push_back(std::move(result));
    if (session_.steps.back().kept) session_.final_step = session_.steps.size() - 1;
  }

  Session finished() {
    session_.spent_s = rig_.spent_s();
    session_.interrupted = rig_.interrupted();
    return std::move(session_);
  }

  const SessionWish& wish_;
  Rig& rig_;
  Session session_;
  double left_ = 0;  // measurements to come, by weight
  double equal_load_s_ = 0;
  double overhead_s_ = 0;  // of each, beside its load
};

}  // namespace

Session tune(const SessionWish& wish, Rig& rig) { return Course(wish, rig).run(); }

std::vector<std::string> causes_of(const std::string& diagnosis) {
  std::vector<std::string> causes;
  const auto document = JsonDocument::parse(diagnosis);
  const auto findings = document ? document->root().find("findings") : std::nullopt;
  if (!findings || !findings->is_array()) return causes;
  for (size_t i = 0; i < findings->size(); ++i)
    if (const auto cause = findings->at(i).find("cause"); cause && cause->string())
      causes.emplace_back(*cause->string());
  return causes;
}

}  // namespace sluice::tune
