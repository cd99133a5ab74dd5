// What SIGHUP does to a server: reads its settings again (file and flags, as at start) and hands the engine
// those that may change while it runs. Says what changed, which changes need a restart, or why nothing changed.
#pragma once

#include <functional>
#include <string_view>

#include "cli/config.h"
#include "engine/engine.h"

namespace sluice::cli {

// Whether a key takes effect without a restart.
bool is_live(std::string_view key);

class Reload {
 public:
  using SetTraffic = std::function<Status(const TrafficSettings&)>;
  // `reread`: the settings as they stand now, or why they are refused. `set_traffic`: the server's; called
  // where `traffic` has changed.
  Reload(Config running, std::function<Result<Config>()> reread, SetTraffic set_traffic)
      : running_(std::move(running)), reread_(std::move(reread)), set_traffic_(std::move(set_traffic)) {}
  void apply(Engine& engine);

 private:
  Config running_;
  std::function<Result<Config>()> reread_;
  SetTraffic set_traffic_;
};

}  // namespace sluice::cli
