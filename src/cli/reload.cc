#include "cli/reload.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/log.h"
#include "cli/canary_config.h"
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

std::string file_identity(const std::string& path) {
  struct stat of {};
  if (stat(path.c_str(), &of) != 0) return {};
  return fmt::format("{}:{} {} {}.{}", of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
}

Reload::Reload(Config running, std::function<Result<Config>()> reread, Actions actions)
    : running_(std::move(running)),
      running_file_(file_identity(running_.model.path)),
      reread_(std::move(reread)),
      actions_(std::move(actions)) {
  if (auto canary = canary_config(running_); canary.ok()) canary_ = model_of(*canary);
}

std::optional<Reload::Model> Reload::model_of(const std::optional<Config>& config) {
  if (!config) return std::nullopt;
  return Model{*config, file_identity(config->model.path)};
}

// Whether a canary has to be loaded anew for what is wanted.
bool Reload::is_other(const Model& wanted) const {
  if (!canary_ || wanted.file != canary_->file) return true;
  for (const Key* key : changed_keys(canary_->config, wanted.config))
    if (is_of_model(*key) && !is_live(key->name)) return true;
  return false;
}

void Reload::apply(Engine& stable, Engine* canary) {
  const Result<Config> read = reread_();
  if (!read) return refuse(read.error());
  const Result<std::optional<Config>> canary_read = canary_config(*read);
  if (!canary_read) return refuse(canary_read.error());
  const std::string file = file_identity(read->model.path);
  const bool swap = read->model.path != running_.model.path || file != running_file_;
  const std::optional<Model> wanted = model_of(*canary_read);
  const bool new_canary = wanted && is_other(*wanted);
  std::string fixed, traffic;
  for (const Key* key : changed_keys(running_, *read)) {
    const std::string_view name = key->name;
    if (!is_live(name) && !(swap && is_of_model(*key))) list(fixed, name);
    if (name.starts_with("traffic.")) list(traffic, name);
  }
  const Result<std::string> changed = stable.reschedule(read->model.engine);
  if (!changed) return refuse(changed.error());
  if (!fixed.empty()) LOG(warn, "reload: changed, but needs a restart: {}", fixed);
  if (!traffic.empty()) {
    if (Status status = actions_.set_traffic(read->server.traffic); status.ok()) {
      running_.server.traffic = read->server.traffic;
    } else {  // the schedule has changed already: what else is asked for goes on
      LOG(warn, "reload: traffic stays as it is: {}", status.error().message);
      traffic.clear();
    }
  }
  if (canary != nullptr && wanted && !new_canary)
    if (const auto its = canary->reschedule(wanted->config.model.engine); !its)
      LOG(warn, "reload: of the canary: {}", its.error().message);
  std::string all = *changed;
  const auto say = [&](const std::string& what) { all += (all.empty() ? "" : "; ") + what; };
  if (!traffic.empty()) say(traffic);
  if (swap) say(fmt::format("{} is loaded beside what is served", read->model.path));
  if (new_canary) say(fmt::format("{} is loaded as a canary", wanted->config.model.path));
  LOG(info, "reload: {}", all.empty() ? "no change" : all);
  if (const std::string idle = without_effect(read->model.engine); !idle.empty()) LOG(warn, "reload: {}", idle);
  EngineConfig& engine_config = running_.model.engine;
  engine_config.batching = read->model.engine.batching;
  engine_config.scheduling = read->model.engine.scheduling;
  engine_config.mixed_prompt_tokens = read->model.engine.mixed_prompt_tokens;
  begin_loads(swap ? std::optional(Model{*read, file}) : std::nullopt, new_canary ? wanted : std::nullopt,
              !wanted);
}

// A canary ends before its successor is loaded, so that memory is there for it and nobody asks the one that is
// given up.
void Reload::begin_loads(std::optional<Model> stable, std::optional<Model> canary, bool no_canary) {
  if (canary_ && (canary || no_canary)) {
    canary_.reset();
    actions_.drop_canary();
  }
  loading_ = {std::move(stable), std::move(canary)};
  for (const Pool pool : {Pool::stable, Pool::canary})
    if (const auto& model = loading_[size_t(pool)]) actions_.load(pool, model->config);
}

void Reload::loaded(Pool pool, bool done) {
  std::optional<Model> model = std::exchange(loading_[size_t(pool)], std::nullopt);
  if (!done || !model) return;
  if (pool == Pool::canary) {
    canary_ = std::move(model);
    return;
  }
  running_.model = model->config.model;
  running_file_ = model->file;
}

}  // namespace sluice::cli
