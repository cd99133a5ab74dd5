// Ways to make an Engine: of a model on a backend, or of anything that runs steps.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/engine.h"
#include "engine/kv_size.h"
#include "engine/step_runner.h"
#include "model/weights.h"
#include "sched/scheduler.h"

namespace sluice {

// What an engine runs on; everything referenced outlives it.
struct EngineModel {
  const ModelSpec& spec;
  const Weights& weights;
  Backend& backend;
  std::vector<int32_t> end_ids;        // end-of-generation ids
  std::function<void()> on_warm_up{};  // called when all is allocated and the warm-up begins
};

// What make_engine asks size_kv for, given the memory that is free once the weights are in; `serve --dry-run`
// shows it.
KvWish kv_wish(const ModelSpec& spec, const EngineConfig& config, Backend& backend, size_t free_bytes);

// "auto", "cpu", "ref" or "cuda[:N]"; what this build lacks is an error that says so.
Result<std::unique_ptr<Backend>> make_backend(const std::string& device, const CpuOptions& cpu);

// Refuses a max_context that is too short to be of use or longer than the model's. `path` serves messages.
Status check_context(const EngineConfig& config, const ModelSpec& spec, const std::string& path);

// Allocates activations and the block pool, computes a warm-up prompt, starts the threads. Errors: not enough
// memory for one sequence, settings that contradict each other (named).
Result<std::unique_ptr<Engine>> make_engine(const EngineModel& model, const EngineConfig& config);

// For tests: any runner. `info` supplies context, vocabulary and end ids; `cost` may be zero.
std::unique_ptr<Engine> make_engine(EngineInfo info, const Policy& policy, const KvLayout& layout,
                                    const ModelCost& cost, std::unique_ptr<StepRunner> runner);

}  // namespace sluice
