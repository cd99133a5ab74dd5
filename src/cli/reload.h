// What SIGHUP does to a server: reads its settings again (file and flags, as at start) and hands the engines
// those that may change while they run; other models are loaded beside those that run. Says what changed, which
// changes need a restart, or why nothing changed.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/config.h"
#include "engine/engine.h"
#include "server/traffic/canary.h"

namespace sluice::cli {

// Whether a key takes effect without a restart, the model as it is.
bool is_live(std::string_view key);

// Which file or folder a path leads to, so that another one behind the same link or name counts as another
// model; empty: to none.
std::string file_identity(const std::string& path);

class Reload {
 public:
  struct Actions {
    // The server's; called where `traffic` has changed.
    std::function<Status(const TrafficSettings&)> set_traffic;
    // Begins to load a pool's model, in place of the one that it has; `loaded` says what became of it.
    std::function<void(Pool, const Config&)> load;
    // The canary ends, before its successor is loaded too.
    std::function<void()> drop_canary;
  };
  // Before the load of `running`, whose canary_config is no error. `reread`: the settings as they stand now, or
  // why they are refused.
  Reload(Config running, std::function<Result<Config>()> reread, Actions actions);
  // No load is under way. `canary` null: there is none in this process.
  void apply(Engine& stable, Engine* canary);
  void loaded(Pool pool, bool done);

 private:
  struct Model {
    Config config;
    std::string file;
  };
  static std::optional<Model> model_of(const std::optional<Config>& config);
  bool is_other(const Model& wanted) const;
  void begin_loads(std::optional<Model> stable, std::optional<Model> canary, bool no_canary);

  Config running_;
  std::string running_file_;
  std::optional<Model> canary_;                  // that runs
  std::array<std::optional<Model>, 2> loading_;  // by Pool: those that are to take places
  std::function<Result<Config>()> reread_;
  Actions actions_;
};

}  // namespace sluice::cli
