// The models of a server with a canary in its own process, as `traffic.canary.model` and `.settings` say.
#pragma once

#include <optional>

#include "cli/config.h"

namespace sluice::cli {

// Whether a key is of the model and its engine: it takes effect with the next model that is loaded.
bool is_of_model(const Key& key);

// The settings of the canary's model: the server's, with traffic.canary.settings over them. None: there is no
// canary in this process. Errors (traffic.canary.settings): a key that there is not or that is no model's, a
// value that is refused.
Result<std::optional<Config>> canary_config(const Config& config);

// Of a CPU, who computes with how many threads. Without a canary, and where cpu.threads says it, as it says;
// else the canary has a quarter of the cores, one at least, and the stable pool the others, one at least.
struct CpuShares {
  int stable = 0, canary = 0;  // 0: decided by the backend
};
CpuShares cpu_shares(const Config& config, const std::optional<Config>& canary, int cores);

}  // namespace sluice::cli
