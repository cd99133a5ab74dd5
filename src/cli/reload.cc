#include "cli/reload.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <functional>

#include "base/log.h"
#include "engine/make_engine.h"

namespace sluice::cli {

namespace {

void refuse(const Error& error) {
  LOG(warn, "reload: {}{}{}; nothing has changed", error.field, error.field.empty() ? "" : ": ", error.message);
}

void list(std::string& names, std::string_view name) {
  names += (names.empty() ? "" : ", ") + std::string(name);
}

}  // namespace

bool is_live(std::string_view key) {
  return key.starts_with("scheduler.") || key.starts_with("inference.dynamic_batching.") ||
         key == "engine.mixed_prompt_tokens" || key.starts_with("traffic.");
}

bool is_of_model(const Key& key) {
  Config config;
  const void* const slot = std::visit([](auto* value) -> const void* { return value; }, key.slot(config));
  const std::less<const void*> before;
  return !before(slot, &config.model) && before(slot, &config.model + 1);
}

std::string file_identity(const std::string& path) {
  struct stat of {};
  if (stat(path.c_str(), &of) != 0) return {};
  return fmt::format("{}:{} {} {}.{}", of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
}

Reload::Reload(Config running, std::function<Result<Config>()> reread, Actions actions)
    : running_(std::move(running)),
      running_file_(file_identity(running_.model.path)),
      reread_(std::move(reread)),
      actions_(std::move(actions)) {}

void Reload::apply(Engine& engine) {
  const Result<Config> read = reread_();
  if (!read) return refuse(read.error());
  next_file_ = file_identity(read->model.path);
  const bool swap = read->model.path != running_.model.path || next_file_ != running_file_;
  std::string fixed, traffic;
  for (const Key* key : changed_keys(running_, *read)) {
    const std::string_view name = key->name;
    if (!is_live(name) && !(swap && is_of_model(*key))) list(fixed, name);
    if (name.starts_with("traffic.")) list(traffic, name);
  }
  const Result<std::string> changed = engine.reschedule(read->model.engine);
  if (!changed) return refuse(changed.error());
  if (!fixed.empty()) LOG(warn, "reload: changed, but needs a restart: {}", fixed);
  if (!traffic.empty()) {
    if (Status status = actions_.set_traffic(read->server.traffic); !status.ok()) return refuse(status.error());
    running_.server.traffic = read->server.traffic;
  }
  std::string all = *changed;
  if (!traffic.empty()) all += (all.empty() ? "" : "; ") + traffic;
  if (swap)
    all += fmt::format("{}{} is loaded beside what is served", all.empty() ? "" : "; ", read->model.path);
  LOG(info, "reload: {}", all.empty() ? "no change" : all);
  if (const std::string idle = without_effect(read->model.engine); !idle.empty()) LOG(warn, "reload: {}", idle);
  EngineConfig& engine_config = running_.model.engine;
  engine_config.batching = read->model.engine.batching;
  engine_config.scheduling = read->model.engine.scheduling;
  engine_config.mixed_prompt_tokens = read->model.engine.mixed_prompt_tokens;
  if (!swap) return;
  next_ = read->model;
  actions_.swap(next_);
}

void Reload::swapped(bool done) {
  if (!done) return;
  running_.model = next_;
  running_file_ = next_file_;
}

}  // namespace sluice::cli
