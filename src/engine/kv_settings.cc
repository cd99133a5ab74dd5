#include "engine/kv_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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

namespace {

// The folder is made by the engine; here only whether it can be.
Status check_folder(const std::string& path) {
  const auto wrong = [](std::string what) {
    return Error{ErrorCode::kInvalidArgument, std::move(what), "kv.disk_path"};
  };
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!error && !std::filesystem::exists(at, error) && !error) at = at.parent_path();
  if (error) return wrong(fmt::format("{}: {}", path, error.message()));
  if (!std::filesystem::is_directory(at)) return wrong(fmt::format("{} is not a folder", at.string()));
  if (access(at.c_str(), R_OK | W_OK | X_OK) != 0)
    return wrong(fmt::format("{}: {}", at.string(), std::strerror(errno)));
  return {};
}

}  // namespace

Status check_outside(const KvSettings& s, bool prefix_cache) {
  const auto wrong = [](const char* what, const char* field) {
    return Error{ErrorCode::kInvalidArgument, what, field};
  };
  if (!s.disk_path.empty() && s.host_bytes == 0)
    return wrong("blocks come and go through host memory: set kv.host_bytes too", "kv.disk_path");
  if (s.host_bytes == 0) return {};
  if (!prefix_cache)
    return wrong("holds blocks of the prefix cache: set kv.prefix_cache: true", "kv.host_bytes");
  if (s.allocation != "paged") return wrong("goes with kv.allocation paged only", "kv.host_bytes");
  return s.disk_path.empty() ? Status{} : check_folder(s.disk_path);
}

Status check_sparse(const KvSettings& s, const Backend& backend) {
  if (s.sparse_above == 0) return {};
  if (!(s.sparse_keep > 0 && s.sparse_keep <= 1))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("must be above 0 and at most 1, not {}", s.sparse_keep), "kv.sparse_keep"};
  if (backend.has_sparse_decode()) return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("{} reads all of a context when it decodes; 0 is the only value it takes",
                           backend.info().name),
               "kv.sparse_above"};
}

size_t machine_memory_bytes() { return size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE)); }

Result<int> host_slots_of(const KvSettings& s, size_t slot_bytes, int groups) {
  if (s.host_bytes == 0) return 0;
  constexpr int kMostSlots = 1 << 24;
  // A block of each group to come, while as many go.
  const size_t least = 2 * size_t(groups) * slot_bytes;
  if (s.host_bytes < least)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} bytes hold too few blocks: 0, or at least {}", s.host_bytes, least),
                 "kv.host_bytes"};
  const size_t machine = machine_memory_bytes();
  if (s.host_bytes > machine)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} bytes are more than the machine's {}", s.host_bytes, machine),
                 "kv.host_bytes"};
  if (!s.disk_path.empty() && s.disk_bytes < least)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} bytes hold too few blocks: at least {}", s.disk_bytes, least),
                 "kv.disk_bytes"};
  return int(std::min<size_t>(s.host_bytes / slot_bytes, kMostSlots));
}

ModelSpec with_window(const ModelSpec& spec, int window) {
  ModelSpec forced = spec;
  if (window == 0) return forced;
  if (spec.window > 0) forced.window = std::min(spec.window, window);
  forced.full_window = window;
  return forced;
}

}  // namespace sluice
