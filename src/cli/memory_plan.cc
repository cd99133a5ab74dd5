#include "cli/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "engine/kv_settings.h"
#include "engine/make_engine.h"
#include "engine/model_text.h"
#include "model/weight_bytes.h"

namespace sluice::cli {

MemoryPlan plan_memory(const Checkpoint& checkpoint, const Config& config) {
  MemoryPlan plan;
  plan.spec = with_window(checkpoint.spec(), config.model.engine.kv.sliding_window);
  plan.path = checkpoint.path();
  plan.format = checkpoint.format();
  for (const TensorInfo& t : checkpoint.tensors()) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    plan.file_bytes += t.bytes;
    plan.canonical_bytes += canonical_bytes(t.canonical, elements);
  }
  const ModelSpec& s = plan.spec;
  constexpr size_t kCacheElementBytes = 2;
  const size_t per_layer = 2 * size_t(s.kv_heads) * size_t(s.head_dim) * kCacheElementBytes;
  plan.kv_bytes_per_token = per_layer * size_t(s.layers);
  plan.context = config.model.engine.max_context > 0 ? config.model.engine.max_context : s.context;
  for (int layer = 0; layer < s.layers; ++layer)
    plan.kv_bytes_full +=
        per_layer *
        size_t(s.layer_window(layer) ? std::min(plan.context, s.layer_window(layer)) : plan.context);
  return plan;
}

void plan_device(MemoryPlan& plan, const Checkpoint& checkpoint, const Backend& backend) {
  const DeviceInfo device = backend.info();
  std::set<std::string> changes;
  plan.device_bytes = 0;
  size_t four_bits = 0;  // as bf16
  for (const TensorInfo& t : checkpoint.tensors()) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    const WeightFormat kept = kept_as(t, backend);
    plan.device_bytes += canonical_bytes(kept, elements);
    if (kept.element == WeightElement::int4) four_bits += canonical_bytes({WeightElement::bf16}, elements);
    if (kept.element != t.canonical.element)
      changes.insert(fmt::format("{} \u2192 {}", weight_element_name(t.canonical.element),
                                 weight_element_name(kept.element)));
  }
  plan.device = fmt::format("{}, {}{}, {:.1f} GB free", device.name, device.instruction_set,
                            device.threads ? fmt::format(", {} threads", device.threads) : "",
                            double(device.memory_bytes) / 1e9);
  plan.copies_bytes = backend.copies_bytes(plan.device_bytes, four_bits);
  if (!device.state.empty()) plan.device += ", " + device.state;
  if (!changes.empty()) plan.device += fmt::format("; weights there: {}", fmt::join(changes, ", "));
}

std::string describe(const MemoryPlan& plan) {
  const ModelSpec& s = plan.spec;
  std::string out = fmt::format("{}: {}, {}\n", plan.path, plan.format, s.architecture);
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("  {:24}{}\n", name, value);
  };
  const auto mb = [](size_t bytes) { return fmt::format("{:.1f} MB", double(bytes) / 1e6); };
  line("layers", fmt::format("{}", s.layers));
  line("hidden", fmt::format("{}", s.hidden));
  line("heads", fmt::format("{} query, {} key/value, of {}", s.heads, s.kv_heads, s.head_dim));
  line("feed-forward", fmt::format("{}", s.ffn));
  line("vocabulary", fmt::format("{}{}", s.vocab, s.tied_head ? ", head tied to the embedding" : ""));
  if (s.window > 0) {
    int windowed = 0;
    for (int layer = 0; layer < s.layers; ++layer) windowed += s.layer_windowed(layer);
    line("window", fmt::format("{} tokens on {} layers", s.window, windowed));
  }
  line("context", fmt::format("{} of {} tokens", plan.context, s.context));
  line("weights in the file", mb(plan.file_bytes));
  line("weights in memory", "about " + mb(plan.device_bytes ? plan.device_bytes : plan.canonical_bytes));
  if (plan.copies_bytes) line("copies as bf16", "about " + mb(plan.copies_bytes) + " (gpu.bf16_copies)");
  line("KV cache per token", fmt::format("{:.1f} KB", double(plan.kv_bytes_per_token) / 1e3));
  line("KV cache, full context", mb(plan.kv_bytes_full) + " a sequence");
  if (!plan.device.empty()) line("device", plan.device);
  return out;
}

Result<std::string> describe_start(const Config& config) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return std::move(checkpoint).error();
  if (Status fits = check_context(config.model.engine, (*checkpoint)->spec(), config.model.path); !fits)
    return std::move(fits).error();
  if (Result<ModelText> text = load_text(**checkpoint, config.model.chat_template_file); !text)
    return std::move(text).error();
  Result<std::unique_ptr<Backend>> backend =
      backend_for((*checkpoint)->spec(), config.model.engine, config.model.device, config.model.cpu);
  if (!backend) return std::move(backend).error();
  MemoryPlan plan = plan_memory(**checkpoint, config);
  plan_device(plan, **checkpoint, **backend);
  const DeviceInfo device = (*backend)->info();
  DeviceInfo loaded = device;
  if (device.is_card() && plan.device_bytes > device.memory_bytes)
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("the weights take {:.1f} GiB, of which {:.1f} are short: {:.1f} GiB of the card's "
                             "{:.1f} are free{}; use a smaller model or another card (--device cuda:N)",
                             gib(plan.device_bytes), gib(plan.device_bytes - device.memory_bytes),
                             gib(device.memory_bytes), gib(device.memory_total), others_on_card(device))};
  const EngineConfig engine = settled(config.model.engine, device);
  const size_t workspace = kv_workspace_bytes(plan.spec, engine, **backend, plan.context);
  loaded.memory_bytes -= std::min(loaded.memory_bytes, plan.device_bytes + plan.copies_bytes + workspace);
  const KvWish wish = kv_wish(plan.spec, engine, **backend, loaded);
  const Result<KvSize> kv = size_kv(wish);
  if (!kv) return kv.error();
  if (Status ok = check_outside(engine.kv, engine.prefix_cache); !ok) return std::move(ok).error();
  const Result<int> host_slots = host_slots_of(engine.kv, wish.block_bytes, wish.layout.groups());
  if (!host_slots) return host_slots.error();
  const Result<Batching> batching =
      batching_of(config.model.engine.batching, config.model.engine.max_sequences);
  if (!batching) return batching.error();
  std::string out = describe(plan) + fmt::format("  {:24}{}\n  {:24}{}\n", "KV cache", kv->reason, "batching",
                                                 describe(*batching));
  if (workspace > 0)
    out += fmt::format("  {:24}{:.1f} MB besides, to unpack blocks or to choose among them\n", "",
                       double(workspace) / 1e6);
  if (*host_slots > 0)
    out += fmt::format(
        "  {:24}{:.0f} MiB of host memory{}\n", "KV outside the pool",
        mib(size_t(*host_slots) * wish.block_bytes),
        engine.kv.disk_path.empty()
            ? ""
            : fmt::format(", {:.0f} MiB of files in {}", mib(engine.kv.disk_bytes), engine.kv.disk_path));
  if (const std::string idle = without_effect(config.model.engine); !idle.empty())
    out += fmt::format("  {:24}{}\n", "without effect", idle);
  return out;
}

}  // namespace sluice::cli
