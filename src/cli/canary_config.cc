#include "cli/canary_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace sluice::cli {

bool is_of_model(const Key& key) {
  Config config;
  const void* const slot = std::visit([](auto* value) -> const void* { return value; }, key.slot(config));
  const std::less<const void*> before;
  return !before(slot, &config.model) && before(slot, &config.model + 1);
}

Result<std::optional<Config>> canary_config(const Config& config) {
  const CanarySettings& settings = config.server.traffic.canary;
  if (!settings.is_here()) return std::optional<Config>();
  const auto wrong = [](std::string why) {
    return Error{ErrorCode::kInvalidArgument, std::move(why), "traffic.canary.settings"};
  };
  Config canary = config;
  canary.model.cpu.threads = 0;
  if (!settings.model.empty()) canary.model.path = settings.model;
  for (const std::string& setting : settings.settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) return wrong(fmt::format("expected KEY=VALUE, got '{}'", setting));
    const std::string name = setting.substr(0, equals);
    const Key* const key = find_key(name);
    if (key != nullptr && (!is_of_model(*key) || name == "model.path"))
      return wrong(fmt::format("{} is not the canary's alone to have{}", name,
                               name == "model.path" ? "; its model is traffic.canary.model" : ""));
    if (Status status = set_key(canary, name, setting.substr(equals + 1)); !status)
      return wrong(key != nullptr ? fmt::format("{}: {}", name, status.error().message)
                                  : status.error().message);
  }
  return std::optional<Config>(std::move(canary));
}

CpuShares cpu_shares(const Config& config, const std::optional<Config>& canary, int cores) {
  CpuShares shares{config.model.cpu.threads, 0};
  if (!canary) return shares;
  shares.canary = canary->model.cpu.threads;
  if (shares.canary == 0) shares.canary = std::max(1, cores / 4);
  if (shares.stable == 0) shares.stable = std::max(1, cores - shares.canary);
  return shares;
}

}  // namespace sluice::cli
