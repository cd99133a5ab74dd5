// What SIGHUP does to a server: reads its settings again (file and flags, as at start) and hands the engine
// those that may change while it runs; another model is loaded beside it. Says what changed, which changes need
// a restart, or why nothing changed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/config.h"
#include "engine/engine.h"

namespace sluice::cli {

// Whether a key takes effect without a restart, the model as it is.
bool is_live(std::string_view key);
// Whether it is of the model and its engine: it takes effect with the next model that is loaded.
bool is_of_model(const Key& key);

// Which file or folder a path leads to, so that another one behind the same link or name counts as another
// model; empty: to none.
std::string file_identity(const std::string& path);

class Reload {
 public:
  struct Actions {
    // The server's; called where `traffic` has changed.
    std::function<Status(const TrafficSettings&)> set_traffic;
    // Begins to load a model in place of the one that runs; `swapped` says what became of it.
    std::function<void(const LoadOptions&)> swap;
  };
  // Before the load of `running`. `reread`: the settings as they stand now, or why they are refused.
  Reload(Config running, std::function<Result<Config>()> reread, Actions actions);
  // No swap is under way.
  void apply(Engine& engine);
  void swapped(bool done);

 private:
  Config running_;
  std::string running_file_;
  LoadOptions next_;  // of the swap that is under way
  std::string next_file_;
  std::function<Result<Config>()> reread_;
  Actions actions_;
};

}  // namespace sluice::cli
