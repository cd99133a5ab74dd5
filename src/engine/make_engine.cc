// Sizes everything for a model on a backend, then puts the engine together.
#include "engine/make_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/batching_settings.h"
#include "engine/device_check.h"
#include "engine/kv_size.h"
#include "engine/replay_buckets.h"

namespace sluice {
namespace {

ModelCost cost_of(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights,
                  const KvGeometry& kv) {
  ModelCost cost;
  cost.weight_bytes = weights.bytes_per_token();
  cost.kv_bytes_per_token =
      2 * size_t(kv.layers_per_group) * size_t(kv.kv_heads) * size_t(kv.head_dim) * dtype_size(kv.dtype);
  const auto product = [](const Weight& w) { return 2.0 * double(w.rows) * double(w.cols); };
  for (const LayerWeights& w : weights.layers) {
    for (const Weight* m : {&w.o, &w.down, &w.router}) cost.flops_per_token += product(*m);
    for (const SideBySide* s : {&w.qkv, &w.gate_up})
      for (const Weight& m : *s) cost.flops_per_token += product(m);
    if (!w.experts.empty())
      cost.flops_per_token +=
          spec.experts_per_token * (product(w.experts[0].gate_up) + product(w.experts[0].down));
  }
  cost.flops_per_logit_row = 2.0 * spec.vocab * spec.hidden;
  cost.flops_per_attended = 4.0 * groups.layers_per_group * spec.heads * spec.head_dim;
  return cost;
}

KvGeometry kv_geometry(const LayerGroups& groups, const ModelSpec& spec, const EngineConfig& config,
                       Backend& backend) {
  return {config.block_tokens,
          groups.layers_per_group,
          spec.kv_heads,
          spec.head_dim,
          backend.kv_dtype(),
          config.kv.precision != "bf16",
          {config.kv.sparse_above, float(config.kv.sparse_keep)}};
}

Status check_config(const EngineConfig& c) {
  const auto positive = [](int value, const char* name) -> Status {
    if (value > 0) return {};
    return Error{ErrorCode::kInvalidArgument, fmt::format("must be at least 1, not {}", value), name};
  };
  for (const auto& [value, name] : {std::pair{c.max_sequences, "engine.max_sequences"},
                                    {c.max_queue, "engine.max_queue"},
                                    {c.step_tokens, "engine.step_tokens"},
                                    {c.block_tokens, "engine.block_tokens"},
                                    {c.logit_rows, "engine.logit_rows"}})
    if (Status ok = positive(value, name); !ok) return ok;
  if (!(c.gpu_memory_fraction > 0 && c.gpu_memory_fraction <= 1))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("must be above 0 and at most 1, not {}", c.gpu_memory_fraction),
                 "gpu.memory_fraction"};
  if (c.max_context != 0 && c.max_context < kLeastContext)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("must be 0 or at least {}, not {}", kLeastContext, c.max_context),
                 "engine.max_context"};
  return check_outside(c.kv, c.prefix_cache);
}

// Whose blocks those in files are: of this model, laid out as this build and device lay them.
Sha256 identity_of(const Sha256& model, const Backend& backend, const KvGeometry& g, const KvLayout& layout,
                   size_t slot_bytes) {
  constexpr int kLayoutVersion = 1;  // to be raised when any backend changes how a block lies
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {}", kLayoutVersion, backend.info().is_card(),
                                 g.block_tokens, g.layers_per_group, g.kv_heads, g.head_dim, int(g.dtype),
                                 g.tiered, g.sparse.on(), slot_bytes);
  for (const int window : layout.windows) text += fmt::format(" {}", window);
  text.append(model.begin(), model.end());
  return sha256(text);
}

Status check_device(const Backend& backend, const ModelSpec& spec, const EngineConfig& settled) {
  return check_device(backend, spec, settled.kv,
                      {.block_tokens = settled.block_tokens,
                       .tokens = std::max(settled.step_tokens, settled.max_sequences),
                       .sequences = settled.max_sequences});
}

// The way out: for those who asked for a card, the CPU.
Error advised(Error error, bool card = true) {
  if (card)
    error.message += error.field.starts_with("engine.") || error.field.starts_with("kv.")
                         ? "; change it, or use --device cpu"
                         : "; use --device cpu";
  return error;
}

// Sizes that the products of the layers are met at before the first request: what a library looks up or loads
// for a number of rows, it does then.
WarmUp warm_up_for(const DeviceInfo& device, int step_tokens, std::function<void(double)> progress) {
  WarmUp warm_up{{}, std::move(progress), !device.is_card()};
  // As many as make the cost of a prompt's rows known (step_time.h): else the first prompts beside a stream
  // would find out, at its expense.
  if (!device.is_card())
    for (int tokens : {16, 8, 24, 16}) warm_up.prompts.push_back(std::min(tokens, step_tokens));
  if (!device.is_card()) return warm_up;
  for (int tokens = step_tokens; tokens >= 16; tokens /= 2) warm_up.prompts.push_back(tokens);
  warm_up.prompts.push_back(1);
  return warm_up;
}

// What found no memory.
struct Shortage {
  std::string what;
  size_t bytes = 0;  // that it takes; 0: not known
  bool pool = false;
};

Error too_little_for(const Shortage& lack, const EngineConfig& config, const Backend& backend) {
  const DeviceInfo now = backend.info();
  std::string text = "not enough memory for " + lack.what;
  if (lack.bytes > now.memory_bytes)
    text += fmt::format(": {:.2f} GiB are short", gib(lack.bytes - now.memory_bytes));
  text += fmt::format("; {:.2f} GiB are free", gib(now.memory_bytes));
  if (now.is_card()) text += fmt::format(" of the card's {:.2f}", gib(now.memory_total));
  text += lack.pool ? "; lower engine.kv_bytes or engine.max_context"
                    : fmt::format("; lower engine.step_tokens ({}) or engine.max_sequences ({})",
                                  config.step_tokens, config.max_sequences);
  // On a card all weights become bf16, whatever the file holds.
  text += now.is_card() ? ", or use a smaller model or another card (--device cuda:N)"
                        : ", or use quantized weights";
  return {ErrorCode::kResourceExhausted, text + others_on_card(now)};
}

// The card's number in "cuda" or "cuda:N"; nothing else is taken for one.
std::optional<int> card_number(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return {};
  device.remove_prefix(5);
  int number = 0;
  const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), number);
  if (error != std::errc() || end != device.data() + device.size() || number < 0 || device[0] == '-') return {};
  return number;
}

void say(const DeviceInfo& device, int card) {
  LOG(info, "device: cuda:{}, {}{}{}{}", card, device.name, device.state.empty() ? "" : ", ", device.state,
      others_on_card(device));
}

// A machine without a card, or a build without CUDA, is nothing to worry about; a card that is there and cannot
// be used is.
Result<std::unique_ptr<Backend>> first_usable(const CpuOptions& cpu, CudaOptions cuda) {
  constexpr int kMostCards = 16;
  std::string why;
  bool unused = false;
  for (int card = 0; card < kMostCards; ++card) {
    cuda.device = card;
    auto made = make_cuda_backend(cuda);
    if (made) {
      say((*made)->info(), card);
      if (unused) LOG(warn, "device: the first card that can be used is cuda:{}: {}", card, why);
      return made;
    }
    if (card == 0) why = made.error().message;
    if (made.error().code == ErrorCode::kNotFound) break;
    unused = true;
  }
  auto made = make_cpu_backend(cpu);
  if (made && unused)
    LOG(warn, "device: the CPU, {}, though a card is here: {}", (*made)->info().name, why);
  else if (made)
    LOG(info, "device: the CPU, {}; no card: {}", (*made)->info().name, why);
  return made;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const std::string& device, const CpuOptions& cpu,
                                              CudaOptions cuda) {
  if (device == "auto") return first_usable(cpu, cuda);
  if (device == "cpu") return make_cpu_backend(cpu);
  if (device == "ref") return make_ref_backend();
  if (const auto card = card_number(device)) {
    cuda.device = *card;
    auto made = make_cuda_backend(cuda);
    if (!made) return advised(std::move(made).error());
    say((*made)->info(), *card);
    return made;
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("unknown device \"{}\"; it is auto, cpu or cuda[:N]", device), "device"};
}

Result<std::unique_ptr<Backend>> backend_for(const ModelSpec& spec, const EngineConfig& config,
                                             const std::string& device, const CpuOptions& cpu) {
  auto made = make_backend(device, cpu,
                           {.fuse_quantization = config.gpu_fused_quantization,
                            .bf16_copies = config.gpu_bf16_copies,
                            .memory_fraction = config.gpu_memory_fraction,
                            .time_copies = config.gpu_copy_times});
  if (!made) return made;
  Status runs = check_device(**made, spec, settled(config, (*made)->info()));
  if (runs) return made;
  // A setting is for its owner to change; a model's shape is nobody's choice.
  if (device != "auto" || !runs.error().field.empty())
    return advised(std::move(runs).error(), (*made)->info().is_card());
  LOG(warn, "device: the CPU, since the card cannot run this model: {}", runs.error().message);
  made = make_cpu_backend(cpu);
  return made;
}

EngineConfig settled(const EngineConfig& config, const DeviceInfo& device) {
  EngineConfig c = config;
  if (c.max_sequences == 0) {
    c.max_sequences = device.is_card() ? 256 : 64;
    // A whole batch runs at the same time.
    const Result<Batching> batching = batching_of(c.batching, 0);
    if (batching && batching->kind == BatchingKind::windowed)
      c.max_sequences = std::max(c.max_sequences, batching->window.max_batch);
  }
  if (c.step_tokens == 0) c.step_tokens = device.is_card() ? 2048 : 512;
  if (c.block_tokens == 0) c.block_tokens = c.kv.precision == "bf16" ? 16 : 64;
  return c;
}

Result<Policy> policy_of(const EngineConfig& config) {
  Policy policy;
  policy.max_running = config.max_sequences;
  policy.step_tokens = std::max(config.step_tokens, config.max_sequences);  // one for each always fits
  policy.max_queue = config.max_queue;
  policy.min_progress = config.block_tokens;
  policy.prefix_cache = config.prefix_cache;
  return policy_with(policy, config.batching, config.scheduling, config.mixed_prompt_tokens);
}

std::string without_effect(const EngineConfig& config) {
  const Result<Batching> batching = batching_of(config.batching, config.max_sequences);
  if (!batching) return {};
  const std::vector<std::string> keys =
      without_effect(*batching, config.batching, config.scheduling, config.mixed_prompt_tokens);
  if (keys.empty()) return {};
  return fmt::format("{}: no effect with {}", fmt::join(keys, ", "),
                     config.batching.dynamic.enabled
                         ? "inference.dynamic_batching.enabled: true"
                         : fmt::format("scheduler.policy {}", batching_name(batching->kind)));
}

Status check_context(const EngineConfig& config, const ModelSpec& spec, const std::string& path) {
  if (config.max_context <= spec.context) return {};
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("engine.max_context (--ctx) of {} tokens is more than the {} that {} was made for; give at "
                  "most {}",
                  config.max_context, spec.context, path, spec.context)};
}

KvWish kv_wish(const ModelSpec& spec, const EngineConfig& config, Backend& backend, const DeviceInfo& device) {
  const LayerGroups groups = layer_groups(spec);
  KvWish wish;
  wish.layout.block_tokens = config.block_tokens;
  wish.layout.max_length = config.max_context ? std::min(config.max_context, spec.context) : spec.context;
  wish.layout.max_step_tokens = std::max(config.step_tokens, config.max_sequences);
  wish.layout.steps_in_flight = kStepsInFlight;
  if (const auto tiering = tiering_of(config.kv))
    wish.layout.tiering = *tiering;  // check_device says what is wrong
  wish.layout.whole_context = config.kv.allocation != "paged";
  for (const LayerGroups::Group& group : groups.groups) wish.layout.windows.push_back(group.window);
  wish.block_bytes = backend.kv_block_bytes(kv_geometry(groups, spec, config, backend));
  wish.kv_bytes = config.kv_bytes;
  wish.free_bytes = device.memory_bytes - std::min(device.memory_bytes, config.promised_bytes);
  wish.machine_bytes = machine_memory_bytes();
  wish.max_sequences = config.max_sequences;
  if (device.is_card())
    wish.card = {device.memory_total, device.memory_total - std::min(device.memory_total, device.memory_bytes),
                 device.memory_others, config.gpu_memory_fraction};
  return wish;
}

size_t kv_workspace_bytes(const ModelSpec& spec, const EngineConfig& config, Backend& backend, int context) {
  return backend.kv_workspace_bytes({.max_sequences = config.max_sequences,
                                     .max_context = context,
                                     .kv = kv_geometry(layer_groups(spec), spec, config, backend)});
}

// Activations come first. On a card workspaces too, then the pool takes what they leave; elsewhere workspaces
// are sized for the context that came of the pool.
Result<ModelSteps> make_steps(const ModelSpec& spec, const Weights& weights, Backend& backend,
                              const EngineConfig& wished) {
  const DeviceInfo device = backend.info();
  ModelSteps steps;
  steps.config = settled(wished, device);
  const EngineConfig& config = steps.config;
  if (Status ok = check_config(config); !ok) return std::move(ok).error();
  if (Status ok = check_device(backend, spec, config); !ok)
    return advised(std::move(ok).error(), device.is_card());
  const LayerGroups groups = layer_groups(spec);
  const int max_tokens = std::max(config.step_tokens, config.max_sequences);  // one for each always fits
  steps.limits = {.max_tokens = max_tokens,
                  .max_sequences = config.max_sequences,
                  .replay = config.graphs && backend.can_record(),
                  .sparse = {config.kv.sparse_above, float(config.kv.sparse_keep)}};

  KvWish wish = kv_wish(spec, config, backend, device);
  const KvGeometry geometry = kv_geometry(groups, spec, config, backend);
  steps.cost = cost_of(spec, groups, weights, geometry);
  steps.block_bytes = wish.block_bytes;
  // A recorded step computes all its logits in one tile.
  const int logit_rows = steps.limits.replay
                             ? std::max(config.logit_rows, replay_buckets(config.max_sequences).back())
                             : config.logit_rows;
  const BatchBuilder builder(steps.limits, wish.layout, steps.cost);
  const ModelRunnerShape shape{max_tokens, config.max_sequences, logit_rows,
                               builder.staging_elements() * sizeof(int32_t)};
  steps.runner = std::make_unique<ModelRunner>(spec, groups, weights, backend, shape);
  if (!steps.runner->allocated())
    return too_little_for(
        {fmt::format("the activations of {} tokens", max_tokens), steps.runner->missing_bytes()}, config,
        backend);
  // The arrays of steps are made with the loop, where there is no way back: so it is tried here.
  const size_t arrays = kStepsInFlight * (builder.staging_elements() * sizeof(int32_t) +
                                          builder.result_rows() * sizeof(SampleResult));
  if (!backend.alloc_host(arrays).data())
    return too_little_for({fmt::format("the arrays of steps of {} sequences of {} tokens", config.max_sequences,
                                       wish.layout.max_length),
                           arrays},
                          config, backend);
  const auto reserve = [&](int context) -> Status {
    Status reserved =
        backend.reserve({.max_tokens = max_tokens,
                         .max_sequences = config.max_sequences,
                         .max_columns = std::max({spec.hidden, spec.heads * spec.head_dim, spec.ffn}),
                         .max_heads = spec.heads,
                         .head_dim = spec.head_dim,
                         .max_context = context,
                         .vocab = spec.vocab,
                         .max_logit_rows = logit_rows,
                         .kv = geometry});
    if (reserved) return {};
    return too_little_for({fmt::format("workspaces ({})", reserved.error().message)}, config, backend);
  };
  if (device.is_card()) {
    if (Status ok = reserve(wish.layout.max_length); !ok) return std::move(ok).error();
    wish.card = kv_wish(spec, config, backend, backend.info()).card;
  }
  auto sized = size_kv(wish);
  if (!sized) return std::move(sized).error();
  steps.kv = std::move(*sized);
  // Of a context that somebody asked for, less is worth a warning.
  if (steps.kv.exceeds_free || (config.max_context && steps.kv.layout.max_length < wish.layout.max_length))
    LOG(warn, "keys and values: {}", steps.kv.reason);
  else
    LOG(info, "keys and values: {}", steps.kv.reason);
  const size_t pool_bytes = size_t(steps.kv.blocks) * wish.block_bytes;
  if (!steps.runner->allocate_pool(steps.kv.blocks, wish.block_bytes, geometry))
    return too_little_for({fmt::format("{:.2f} GiB of keys and values", gib(pool_bytes)), pool_bytes, true},
                          config, backend);
  if (!device.is_card())
    if (Status ok = reserve(steps.kv.layout.max_length); !ok) return std::move(ok).error();
  const auto host_slots = host_slots_of(config.kv, wish.block_bytes, wish.layout.groups());
  if (!host_slots) return std::move(host_slots).error();
  steps.outside.host_slots = *host_slots;
  steps.outside.sparse = geometry.sparse;
  if (!steps.runner->allocate_host_blocks(*host_slots))
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("{:.2f} GiB of host memory are not to be had", gib(config.kv.host_bytes)),
                 "kv.host_bytes"};
  if (*host_slots)
    LOG(info, "keys and values outside the pool: {:.0f} MiB of host memory{}",
        mib(size_t(*host_slots) * wish.block_bytes),
        config.kv.disk_path.empty()
            ? ""
            : fmt::format(", {:.0f} MiB of files in {}", mib(config.kv.disk_bytes), config.kv.disk_path));
  if (config.kv.sparse_above > 0)
    LOG(info, "decoding beyond {} tokens reads {:.0f} % of the blocks", config.kv.sparse_above,
        100 * config.kv.sparse_keep);
  return steps;
}

Result<std::unique_ptr<Engine>> make_engine(const EngineModel& model, const EngineConfig& wished) {
  const DeviceInfo device = model.backend.info();
  // Refused before anything is allocated.
  if (Result<Policy> wrong = policy_of(settled(wished, device)); !wrong) return std::move(wrong).error();
  auto made = make_steps(model.spec, model.weights, model.backend, wished);
  if (!made) return std::move(made).error();
  ModelSteps& steps = *made;
  if (model.beside && steps.kv.exceeds_free)
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("keys and values do not fit beside what is served here, whose caches may still take "
                    "{:.0f} MiB: {}; give less",
                    mib(wished.promised_bytes), steps.kv.reason),
        "engine.kv_bytes"};
  const Policy policy = *policy_of(steps.config);
  LOG(info, "batching: {}", describe(policy.batching));
  if (const std::string idle = without_effect(steps.config); !idle.empty()) LOG(warn, "{}", idle);

  EngineInfo info;
  info.spec = model.spec;
  info.context = steps.kv.layout.max_length;
  info.context_wanted = steps.config.max_context ? steps.config.max_context : model.spec.context;
  info.block_tokens = steps.config.block_tokens;
  info.blocks = steps.kv.blocks;
  info.kv_bytes = size_t(steps.kv.blocks) * steps.block_bytes;
  info.weight_bytes = model.weights.bytes();
  info.activation_bytes = steps.runner->activation_bytes();
  info.end_ids = model.end_ids;
  info.device = device;
  if (!steps.config.kv.disk_path.empty())
    steps.outside.disk = {steps.config.kv.disk_path, steps.config.kv.disk_bytes,
                          identity_of(model.digest, model.backend, steps.runner->pool().geometry,
                                      steps.kv.layout, steps.block_bytes)};
  WarmUp warm_up = warm_up_for(device, policy.step_tokens, model.on_warm_up);
  return make_engine(std::move(info), policy, steps.kv.layout, steps.cost, std::move(steps.runner),
                     std::move(warm_up), steps.limits.replay, steps.outside, model.meters);
}

}  // namespace sluice
