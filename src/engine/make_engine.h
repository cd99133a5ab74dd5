// Ways to make an Engine: of a model on a backend, or of anything that runs steps.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/disk_thread.h"
#include "engine/engine.h"
#include "engine/kv_size.h"
#include "engine/model_runner.h"
#include "engine/step_runner.h"
#include "model/weights.h"
#include "sched/scheduler.h"

namespace sluice {

// What an engine runs on; everything referenced outlives it.
struct EngineModel {
  const ModelSpec& spec;
  const Weights& weights;
  Backend& backend;
  std::vector<int32_t> end_ids;  // end-of-generation ids
  Sha256 digest{};               // of its files, where blocks of its cache are kept in files
  MeterPlace meters{};
  bool beside = false;                       // LoadOptions::beside
  std::function<void(double)> on_warm_up{};  // all is allocated; the share of the warm-up that is done
};

// What is computed, and thrown away, before the first request.
struct WarmUp {
  std::vector<int> prompts = {16};  // tokens; one longer than the context is cut
  std::function<void(double)> progress{};
  // Whether these steps tell what later ones take. On a card they do not: code is loaded in them.
  bool tells_step_times = true;
};

// "auto", "cpu", "ref" or "cuda[:N]". Auto: the first card that can be used, else the CPU; the log says which,
// and why. What this build or machine lacks is an error that says so. `cuda`'s card is the device's.
Result<std::unique_ptr<Backend>> make_backend(const std::string& device, const CpuOptions& cpu,
                                              CudaOptions cuda = {});

// The same for a model, before its weights are read. What the device cannot run is an error (kUnsupported) that
// names it; but with "auto" the CPU takes a model whose shape the card cannot run, and the log warns.
Result<std::unique_ptr<Backend>> backend_for(const ModelSpec& spec, const EngineConfig& config,
                                             const std::string& device, const CpuOptions& cpu);

// `config` with what is automatic decided for a device: 64 sequences (more if a batch of the batching policy
// may be larger) and steps of 512 tokens on a CPU, 256 and 2048 on a card.
EngineConfig settled(const EngineConfig& config, const DeviceInfo& device);

// The scheduler's policy of a config that is settled. Errors: those of policy_with.
Result<Policy> policy_of(const EngineConfig& config);

// "KEY, KEY: no effect with scheduler.policy serial": settings that mean nothing beside the others; empty:
// none.
std::string without_effect(const EngineConfig& config);

// What make_engine asks size_kv for, given what is free on `device` once the weights are in; `serve --dry-run`
// shows it. `config` is settled.
KvWish kv_wish(const ModelSpec& spec, const EngineConfig& config, Backend& backend, const DeviceInfo& device);
// What the device takes to read such a pool, besides it. `config` is settled.
size_t kv_workspace_bytes(const ModelSpec& spec, const EngineConfig& config, Backend& backend, int context);

// Refuses a max_context that is too short to be of use or longer than the model's. `path` serves messages.
Status check_context(const EngineConfig& config, const ModelSpec& spec, const std::string& path);

// Where blocks are kept besides the pool (kv/host_tier.h), and what of long contexts is read.
struct KvOutside {
  int host_slots = 0;  // 0: nowhere
  DiskPlace disk = {};
  SparseDecode sparse{};
};

// A model's steps, ready to be built and run: what an engine drives, and `bench engine` without one.
struct ModelSteps {
  EngineConfig config;  // settled
  BatchLimits limits;
  KvSize kv;
  size_t block_bytes = 0;
  ModelCost cost;
  std::unique_ptr<ModelRunner> runner;
  KvOutside outside;
};

// Sizes and allocates activations, workspaces and the block pool; what is referenced outlives it. The backend
// allocates no buffers afterwards.
Result<ModelSteps> make_steps(const ModelSpec& spec, const Weights& weights, Backend& backend,
                              const EngineConfig& config);

// Makes the steps, computes a warm-up, starts the threads. Errors: not enough memory
// for one sequence, settings that contradict each other (named).
Result<std::unique_ptr<Engine>> make_engine(const EngineModel& model, const EngineConfig& config);

// For tests: any runner. `info` supplies context, vocabulary and end ids; `cost` may be zero.
std::unique_ptr<Engine> make_engine(EngineInfo info, const Policy& policy, const KvLayout& layout,
                                    const ModelCost& cost, std::unique_ptr<StepRunner> runner,
                                    const WarmUp& warm_up = {}, bool replay = false,
                                    const KvOutside& outside = {}, const MeterPlace& meters = {});

}  // namespace sluice
