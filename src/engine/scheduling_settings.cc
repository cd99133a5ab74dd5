#include "engine/scheduling_settings.h"

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr int kMostTargetMs = 60'000;

Status within(const char* key, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return Error{ErrorCode::kInvalidArgument, fmt::format("must be from {} to {}, not {}", least, most, value),
               key};
}

std::string target(TimeNs ns) { return ns ? fmt::format("{:g} ms", ms(ns)) : "automatic"; }
std::string prompts(int tokens) { return tokens ? fmt::format("{}", tokens) : "automatic"; }
std::string weights(const LaneWeights& w) { return fmt::format("{}/{}/{}", w[0], w[1], w[2]); }

}  // namespace

Result<Policy> policy_with(Policy policy, const BatchingSettings& batching, const SchedulingSettings& s,
                           int mixed_prompt_tokens) {
  const struct {
    const char* key;
    int value, least, most;
  } numbers[] = {
      {"scheduler.target_itl_ms", s.target_itl_ms, 0, kMostTargetMs},
      {"scheduler.lanes.interactive.weight", s.interactive_weight, 1, kMaxLaneWeight},
      {"scheduler.lanes.standard.weight", s.standard_weight, 1, kMaxLaneWeight},
      {"scheduler.lanes.batch.weight", s.batch_weight, 1, kMaxLaneWeight},
  };
  for (const auto& n : numbers)
    if (Status ok = within(n.key, n.value, n.least, n.most); !ok) return std::move(ok).error();
  Result<Batching> made = batching_of(batching, policy.max_running);
  if (!made) return std::move(made).error();
  policy.batching = *made;
  policy.target_itl_ns = s.target_itl_ms * kMs;
  policy.lane_weights = {s.interactive_weight, s.standard_weight, s.batch_weight};
  policy.mixed_prompt_tokens = mixed_prompt_tokens;
  return policy;
}

std::vector<std::string> without_effect(const Batching& batching, const BatchingSettings& settings,
                                        const SchedulingSettings& scheduling, int mixed_prompt_tokens) {
  const BatchingSettings unset;
  const bool windowed = batching.kind == BatchingKind::windowed, serial = batching.kind == BatchingKind::serial;
  const bool sliding = windowed && !settings.dynamic.enabled;
  const struct {
    const char* key;
    bool set, used;
  } keys[] = {
      {"scheduler.target_itl_ms", scheduling.target_itl_ms != 0, !serial},
      {"engine.mixed_prompt_tokens", mixed_prompt_tokens != 0, !serial},
      {"scheduler.window.window_ms", settings.window.window_ms != unset.window.window_ms, sliding},
      {"scheduler.window.max_batch_size", settings.window.max_batch_size != unset.window.max_batch_size,
       sliding},
      {"scheduler.window.min_trigger_interval_ms",
       settings.window.min_trigger_interval_ms != unset.window.min_trigger_interval_ms, sliding},
      {"scheduler.window.batch_timeout_ms", settings.window.batch_timeout_ms != unset.window.batch_timeout_ms,
       sliding},
      {"inference.dynamic_batching.max_batch_size",
       settings.dynamic.max_batch_size != unset.dynamic.max_batch_size, settings.dynamic.enabled},
      {"inference.dynamic_batching.batch_wait_timeout_ms",
       settings.dynamic.batch_wait_timeout_ms != unset.dynamic.batch_wait_timeout_ms, settings.dynamic.enabled},
  };
  std::vector<std::string> idle;
  for (const auto& k : keys)
    if (k.set && !k.used) idle.emplace_back(k.key);
  return idle;
}

std::string describe_change(const Policy& from, const Policy& to) {
  std::string out;
  const auto line = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b) out += fmt::format("{}{}: {} -> {}", out.empty() ? "" : "; ", what, a, b);
  };
  line("batching", describe(from.batching), describe(to.batching));
  line("target_itl_ms", target(from.target_itl_ns), target(to.target_itl_ns));
  line("lanes", weights(from.lane_weights), weights(to.lane_weights));
  line("mixed_prompt_tokens", prompts(from.mixed_prompt_tokens), prompts(to.mixed_prompt_tokens));
  return out;
}

}  // namespace sluice
