// The server that a simulation stands for: its step times from a card's limits or from recorded steps, its
// memory, and the policy that its settings come to. The same rules as a start (make_engine), on numbers alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/config.h"
#include "cli/recorded_steps.h"
#include "model/checkpoint.h"
#include "sched/simulator/simulator.h"

namespace sluice::cli {

struct SimulatedServer {
  std::string description;  // for people: model and device
  StepCost cost;
  HostCost host;
  bool card = false;
  size_t memory_bytes = 0;           // for the cache, where engine.kv_bytes leaves it open and `blocks` is 0
  int blocks = 0, block_tokens = 0;  // as recorded; 0: reckoned
  int context = 0;                   // of the model, or as recorded
  int max_sequences = 0, step_tokens = 0,
      mixed_prompt_tokens = 0;    // as recorded, for what is automatic; 0: none
  std::vector<int> windows;       // of layer groups
  size_t kv_bytes_per_token = 0;  // of a layer group
  std::optional<CostFit> fit;
};

// "h200" or "cpu" (whose limits are measured now), then what is to differ: "h200,read_gb_s=3350,tflop_s=500";
// also memory_gib, layer_us, step_us. Errors name what is known.
Result<SimulatedServer> server_of_card(const std::string& card, const Checkpoint& checkpoint, int threads);
SimulatedServer server_of_records(const RecordedSteps& recorded);

// Errors: as a start's; names the key.
Result<SimulationSetup> simulation_setup(const SimulatedServer& server, const EngineConfig& config);

}  // namespace sluice::cli
