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
