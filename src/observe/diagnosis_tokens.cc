// Rules about single tokens: what the look-out for odd ones (anomaly.h) has found over the window. Slow tokens
// whose cause has a rule of its own (preemption, long prompts, cores, readers) are left to that.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "observe/diagnosis.h"

namespace sluice {
namespace {

bool is_of_the_server(AnomalyCause cause) {
  return cause == AnomalyCause::broken_op || cause == AnomalyCause::sampler ||
         cause == AnomalyCause::failed_step;
}

// Text that nobody may trust was computed for nothing.
std::optional<Finding> broken_tokens(const Vitals& v) {
  double count = 0, most = 0;
  const SeenAnomaly* worst = nullptr;
  for (const SeenAnomaly& a : v.anomalies) {
    if (!is_of_the_server(a.cause)) continue;
    count += a.count;
    if (a.count > most) most = a.count, worst = &a;
  }
  if (worst == nullptr) return {};
  const double answers = std::max(count, v.finished_s * v.window_s);
  return Finding{
      "broken-tokens",
      count / answers,
      fmt::format("{:.0f} times in {:.0f} answers the server gave what a model does not: mostly {}, for {}. "
                  "The timelines of these requests name step and op.",
                  count, answers, anomaly_name(worst->kind), cause_name(worst->cause)),
      {{"anomalies", count}, {"answers", answers}, {"of_the_most_frequent_kind", worst->count}},
      "the model's files, or the last change of weights or kernels; GET /v1/requests/ID/timeline"};
}

struct SlowCause {
  AnomalyCause cause;
  const char* what;
  const char* setting;
};
constexpr SlowCause kSlowCauses[] = {
    {AnomalyCause::engine_stall, "the engine's thread is busy between steps",
     "fewer waiting requests: engine.max_queue"},
    {AnomalyCause::allocator, "the engine's thread allocates between steps",
     "report it: once warm it allocates nothing"},
    {AnomalyCause::slow_step, "single steps take long, and nothing in them says why",
     "the device and what else runs on it"},
    {AnomalyCause::kv_movement, "blocks change their precision or move to host memory",
     "kv.precision, kv.host_bytes"},
    {AnomalyCause::batch_reshape, "many requests join at once", "scheduler.target_itl_ms"},
    {AnomalyCause::clock_jump, "the clock jumps: the machine is suspended or migrated", "the machine's clock"},
};

std::optional<Finding> slow_tokens(const Vitals& v) {
  constexpr double kFew = 3, kLittle = 0.02;
  const SlowCause* worst = nullptr;
  double longest = 0, count = 0;
  for (const SlowCause& known : kSlowCauses) {
    for (const SeenAnomaly& a : v.anomalies) {
      if (a.kind != AnomalyKind::slow_token || a.cause != known.cause || a.excess_s <= longest ||
          a.count < kFew)
        continue;
      worst = &known, longest = a.excess_s, count = a.count;
    }
  }
  const double lost = longest / (v.window_s * std::max(1.0, v.steps.running));
  if (worst == nullptr || lost < kLittle) return {};
  return Finding{
      "slow-tokens",
      lost,
      fmt::format("{:.0f} tokens came {:.0f} ms later than is usual, each, because {} ({}).", count,
                  1e3 * longest / count, worst->what, cause_name(worst->cause)),
      {{"tokens", count}, {"excess_ms_per_token", 1e3 * longest / count}, {"running", v.steps.running}},
      worst->setting};
}

constexpr Rule kRules[] = {broken_tokens, slow_tokens};

}  // namespace

std::span<const Rule> token_rules() { return kRules; }

}  // namespace sluice
