// Sizes everything for a model on a backend, then puts the engine together.
#include "engine/make_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "engine/kv_size.h"
#include "engine/model_runner.h"

namespace sluice {
namespace {

ModelCost cost_of(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights,
                  const KvGeometry& kv) {
  ModelCost cost;
  cost.weight_bytes = weights.bytes_per_token();
  cost.kv_bytes_per_token =
      2 * size_t(kv.layers_per_group) * size_t(kv.kv_heads) * size_t(kv.head_dim) * dtype_size(kv.dtype);
  for (const LayerWeights& w : weights.layers)
    for (const Weight* m : {&w.qkv, &w.o, &w.gate_up, &w.down})
      cost.flops_per_token += 2.0 * double(m->rows) * double(m->cols);
  cost.flops_per_logit_row = 2.0 * spec.vocab * spec.hidden;
  cost.flops_per_attended = 4.0 * groups.layers_per_group * spec.heads * spec.head_dim;
  return cost;
}

KvGeometry kv_geometry(const LayerGroups& groups, const ModelSpec& spec, const EngineConfig& config,
                       Backend& backend) {
  return {config.block_tokens, groups.layers_per_group, spec.kv_heads, spec.head_dim, backend.kv_dtype()};
}

Status check_config(const EngineConfig& c) {
  const auto positive = [](int value, const char* name) -> Status {
    if (value > 0) return {};
    return Error{ErrorCode::kInvalidArgument, fmt::format("{} must be at least 1, not {}", name, value), name};
  };
  for (const auto& [value, name] : {std::pair{c.max_sequences, "max_sequences"},
                                    {c.max_queue, "max_queue"},
                                    {c.step_tokens, "step_tokens"},
                                    {c.block_tokens, "block_tokens"},
                                    {c.logit_rows, "logit_rows"}})
    if (Status ok = positive(value, name); !ok) return ok;
  if (c.max_context != 0 && c.max_context < kLeastContext)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("max_context must be 0 or at least {}, not {}", kLeastContext, c.max_context),
                 "max_context"};
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const std::string& device, const CpuOptions& cpu) {
  if (device == "auto" || device == "cpu") return make_cpu_backend(cpu);
  if (device == "ref") return make_ref_backend();
  if (device.starts_with("cuda"))
    return Error{ErrorCode::kUnsupported, "this build has no CUDA device; use --device cpu", "device"};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("unknown device \"{}\"; it is auto, cpu or cuda[:N]", device), "device"};
}

Status check_context(const EngineConfig& config, const ModelSpec& spec, const std::string& path) {
  if (config.max_context <= spec.context) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("max_context (--ctx) of {} tokens is more than the {} that {} was made for; give at "
                           "most {}",
                           config.max_context, spec.context, path, spec.context)};
}

KvWish kv_wish(const ModelSpec& spec, const EngineConfig& config, Backend& backend, size_t free_bytes) {
  const LayerGroups groups = layer_groups(spec);
  KvWish wish;
  wish.layout.block_tokens = config.block_tokens;
  wish.layout.max_length = config.max_context ? std::min(config.max_context, spec.context) : spec.context;
  wish.layout.max_step_tokens = std::max(config.step_tokens, config.max_sequences);
  wish.layout.steps_in_flight = kStepsInFlight;
  for (const LayerGroups::Group& group : groups.groups) wish.layout.windows.push_back(group.window);
  wish.block_bytes = backend.kv_block_bytes(kv_geometry(groups, spec, config, backend));
  wish.kv_bytes = config.kv_bytes;
  wish.free_bytes = free_bytes;
  wish.max_sequences = config.max_sequences;
  return wish;
}

Result<std::unique_ptr<Engine>> make_engine(const EngineModel& model, const EngineConfig& config) {
  if (Status ok = check_config(config); !ok) return std::move(ok).error();
  const ModelSpec& spec = model.spec;
  const LayerGroups groups = layer_groups(spec);
  Policy policy;
  policy.max_running = config.max_sequences;
  policy.step_tokens = std::max(config.step_tokens, config.max_sequences);  // one token for each always fits
  policy.max_queue = config.max_queue;
  policy.min_progress = config.block_tokens;

  const DeviceInfo device = model.backend.info();
  const KvWish wish =
      kv_wish(spec, config, model.backend, device.memory_bytes);  // free now, with the weights in
  const KvGeometry geometry = kv_geometry(groups, spec, config, model.backend);
  auto sized = size_kv(wish);
  if (!sized) return std::move(sized).error();
  const KvSize& kv = *sized;
  LOG(info, "keys and values: {}", kv.reason);

  const ModelCost cost = cost_of(spec, groups, model.weights, geometry);
  const BatchBuilder builder({policy.step_tokens, policy.max_running}, kv.layout, cost);
  const ModelRunnerShape shape{policy.step_tokens,
                               policy.max_running,
                               config.logit_rows,
                               kv.blocks,
                               wish.block_bytes,
                               builder.staging_elements() * sizeof(int32_t),
                               geometry};
  auto runner = std::make_unique<ModelRunner>(spec, groups, model.weights, model.backend, shape);
  if (!runner->allocated()) {
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("not enough memory for {:.0f} MiB of keys and values and the activations of {} tokens: set "
                    "kv_bytes or step_tokens lower",
                    double(kv.blocks) * double(wish.block_bytes) / 1048576.0, policy.step_tokens),
        "kv_bytes"};
  }
  model.backend.reserve({.max_tokens = policy.step_tokens,
                         .max_sequences = policy.max_running,
                         .max_columns = std::max({spec.hidden, spec.heads * spec.head_dim, spec.ffn}),
                         .max_heads = spec.heads,
                         .head_dim = spec.head_dim,
                         .max_context = kv.layout.max_length,
                         .vocab = spec.vocab});

  EngineInfo info;
  info.spec = spec;
  info.context = kv.layout.max_length;
  info.block_tokens = config.block_tokens;
  info.blocks = kv.blocks;
  info.kv_bytes = size_t(kv.blocks) * wish.block_bytes;
  info.weight_bytes = model.weights.bytes();
  info.activation_bytes = runner->activation_bytes();
  info.end_ids = model.end_ids;
  info.device = device;
  if (model.on_warm_up) model.on_warm_up();
  return make_engine(std::move(info), policy, kv.layout, cost, std::move(runner));
}

}  // namespace sluice
