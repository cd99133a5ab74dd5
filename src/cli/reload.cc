#include "cli/reload.h"

#include "base/log.h"
#include "engine/make_engine.h"

namespace sluice::cli {

namespace {

void refuse(const Error& error) {
  LOG(warn, "reload: {}{}{}; nothing has changed", error.field, error.field.empty() ? "" : ": ", error.message);
}

}  // namespace

bool is_live(std::string_view key) {
  return key.starts_with("scheduler.") || key.starts_with("inference.dynamic_batching.") ||
         key == "engine.mixed_prompt_tokens" || key.starts_with("traffic.");
}

void Reload::apply(Engine& engine) {
  const Result<Config> read = reread_();
  if (!read) return refuse(read.error());
  std::string fixed, traffic;
  for (const Key* key : changed_keys(running_, *read)) {
    const std::string_view name = key->name;
    if (!is_live(name)) fixed += (fixed.empty() ? "" : ", ") + std::string(name);
    if (name.starts_with("traffic.")) traffic += (traffic.empty() ? "" : ", ") + std::string(name);
  }
  const Result<std::string> changed = engine.reschedule(read->model.engine);
  if (!changed) return refuse(changed.error());
  if (!fixed.empty()) LOG(warn, "reload: changed, but needs a restart: {}", fixed);
  if (!traffic.empty()) {
    if (Status status = set_traffic_(read->server.traffic); !status.ok()) return refuse(status.error());
    running_.server.traffic = read->server.traffic;
  }
  std::string all = *changed;
  if (!traffic.empty()) all += (all.empty() ? "" : "; ") + traffic;
  LOG(info, "reload: {}", all.empty() ? "no change" : all);
  if (const std::string idle = without_effect(read->model.engine); !idle.empty()) LOG(warn, "reload: {}", idle);
  EngineConfig& engine_config = running_.model.engine;
  engine_config.batching = read->model.engine.batching;
  engine_config.scheduling = read->model.engine.scheduling;
  engine_config.mixed_prompt_tokens = read->model.engine.mixed_prompt_tokens;
}

}  // namespace sluice::cli
