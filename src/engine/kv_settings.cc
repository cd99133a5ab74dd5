#include "engine/kv_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "tensor/backend.h"

namespace sluice {
namespace {

constexpr KvTier kTiers[] = {KvTier::fp8, KvTier::int8, KvTier::int4};

}  // namespace

Result<KvTiering> tiering_of(const KvSettings& s) {
  KvTiering tiering;
  for (const KvTier tier : kTiers)
    if (s.precision == kv_tier_name(tier)) tiering = {.stages = {{{tier, 0}}}, .count = 1};
  if (s.precision == "tiered") {
    if (s.tier_int8_tokens < s.tier_full_tokens)
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} tokens in full precision or int8 include the {} in full precision "
                               "(kv.tier_full_tokens), so give at least that",
                               s.tier_int8_tokens, s.tier_full_tokens),
                   "kv.tier_int8_tokens"};
    tiering = {.stages = {{{KvTier::int8, s.tier_full_tokens}, {KvTier::int4, s.tier_int8_tokens}}},
               .count = 2};
  }
  if (tiering.on() && s.allocation != "paged")
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} keeps whole contexts in one precision: use kv.precision bf16 with it, or "
                             "kv.allocation paged with {}",
                             s.allocation, s.precision),
                 "kv.allocation"};
  return tiering;
}

Status check_precision(const KvSettings& settings, const Backend& backend) {
  auto tiering = tiering_of(settings);
  if (!tiering) return std::move(tiering).error();
  for (int s = 0; s < tiering->count; ++s) {
    if (backend.has_kv_tier(tiering->stages[size_t(s)].tier)) continue;
    std::vector<std::string> has = {"bf16"};
    for (const KvTier tier : kTiers)
      if (backend.has_kv_tier(tier)) has.push_back(kv_tier_name(tier));
    if (backend.has_kv_tier(KvTier::int8) && backend.has_kv_tier(KvTier::int4)) has.push_back("tiered");
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: {} cannot keep keys and values so; it can: {}", settings.precision,
                             backend.info().name, fmt::join(has, ", ")),
                 "kv.precision"};
  }
  return {};
}

ModelSpec with_window(const ModelSpec& spec, int window) {
  ModelSpec forced = spec;
  if (window == 0) return forced;
  if (spec.window > 0) forced.window = std::min(spec.window, window);
  forced.full_window = window;
  return forced;
}

}  // namespace sluice
