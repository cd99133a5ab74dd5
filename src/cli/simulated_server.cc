#include "cli/simulated_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/bytes.h"
#include "cli/machine.h"
#include "cli/memory_plan.h"
#include "engine/make_engine.h"
#include "model/slots.h"
#include "model/weight_bytes.h"

namespace sluice::cli {
namespace {

constexpr int kCacheElementBytes = 2;

struct Card {
  DeviceLimits limits;
  double memory_gib = 0;  // 0: a CPU
};

// As measured: docs/performance.md, "On an H200". 700 TFLOP/s are what its power lets products sustain.
constexpr Card kH200 = {{.read_bytes_s = 4.56e12,
                         .matrix_flops_s = 7.0e14,
                         .attention_flops_s = 5.0e14,
                         .tile_rows = 64,
                         .kv_read_share = 0.86,
                         .layer_s = 18e-6,
                         .step_s = 20e-6},
                        139.8};

// Shares of what is measured that steps reach on the CPU (docs/performance.md, "Against llama.cpp").
Card this_machine(int threads) {
  const MachineLimits m =
      measure_machine(threads > 0 ? threads : std::max(1, int(std::thread::hardware_concurrency())));
  return {{.read_bytes_s = 0.9 * m.read_bytes_s,
           .matrix_flops_s = 0.04 * m.int8_ops_s,
           .attention_flops_s = 0.2 * m.f32_ops_s,
           .kv_read_share = 0.5,
           .layer_s = 10e-6,
           .step_s = 50e-6},
          0};
}

Error wrong_card(const std::string& text) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format(
          "--card: expected h200 or cpu, then any of read_gb_s=, tflop_s=, memory_gib=, layer_us=, step_us=, "
          "got '{}'",
          text)};
}

Result<Card> card_of(const std::string& text, int threads) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string name = text.substr(0, comma);
  if (name != "h200" && name != "cpu") return wrong_card(name);
  Card card = name == "h200" ? kH200 : this_machine(threads);
  const struct {
    std::string_view name;
    double* value;
    double unit;
  } known[] = {{"read_gb_s", &card.limits.read_bytes_s, 1e9},
               {"tflop_s", &card.limits.matrix_flops_s, 1e12},
               {"memory_gib", &card.memory_gib, 1},
               {"layer_us", &card.limits.layer_s, 1e-6},
               {"step_us", &card.limits.step_s, 1e-6}};
  for (size_t at = comma; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string part = text.substr(at + 1, end - at - 1);
    at = end;
    const size_t equals = std::min(part.find('='), part.size());
    double value = 0;
    const char* begin = part.data() + std::min(equals + 1, part.size());
    const auto [last, error] = std::from_chars(begin, part.data() + part.size(), value);
    const auto row = std::find_if(std::begin(known), std::end(known), [&](const auto& k) {
      return k.name == std::string_view(part).substr(0, equals);
    });
    if (row == std::end(known) || error != std::errc() || last != part.data() + part.size() ||
        !(value > 0 && value < 1e9))
      return wrong_card(part);
    *row->value = value * row->unit;
  }
  return card;
}

ShapeCost shape_of(const Checkpoint& checkpoint, const LayerGroups& groups, size_t weight_bytes) {
  const ModelSpec& spec = checkpoint.spec();
  ShapeCost shape;
  shape.layers = spec.layers, shape.hidden = spec.hidden;
  shape.weight_bytes = double(weight_bytes);
  shape.kv_token_bytes = 2.0 * groups.layers_per_group * spec.kv_heads * spec.head_dim * kCacheElementBytes;
  for (const Slot& slot : slots_of(spec))
    if (slot.matrix && slot.name.starts_with("blk."))
      shape.flops_per_row += 2.0 * double(slot.rows) * double(slot.cols);
  shape.flops_per_sample = 2.0 * spec.vocab * spec.hidden;
  shape.flops_per_pair = 4.0 * groups.layers_per_group * spec.heads * spec.head_dim;
  return shape;
}

// Bytes of weights in memory, and of those the ones that a step reads: all but an embedding that is not the
// head.
struct WeightBytes {
  size_t all = 0, read = 0;
};
WeightBytes weight_bytes(const Checkpoint& checkpoint, bool card) {
  WeightBytes bytes;
  size_t embedding = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    const bool matrix = t.shape.size() > 1 && t.shape[0] > 1;
    const size_t kept = card && matrix ? size_t(elements) * 2 : canonical_bytes(t.canonical, elements);
    bytes.all += kept;
    if (matrix && t.shape[0] == checkpoint.spec().vocab) embedding = kept;
  }
  bytes.read = bytes.all - (checkpoint.spec().tied_head ? 0 : embedding);
  return bytes;
}

double line_at(const std::vector<StepRecord>& steps, TimeNs (*of)(const StepRecord&), double& slope) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const StepRecord& r : steps) {
    const double s = r.sequences, t = double(of(r));
    n += 1, x += s, y += t, xx += s * s, xy += s * t;
  }
  const double spread = n * xx - x * x;
  slope = spread > 0 ? std::max(0.0, (n * xy - x * y) / spread) : 0;
  return std::max(0.0, (y - slope * x) / n);
}

HostCost host_of(const std::vector<StepRecord>& steps) {
  HostCost host;
  double slope = 0;
  host.plan_ns = TimeNs(line_at(
      steps, [](const StepRecord& r) { return r.plan_ns + r.build_ns; }, slope));
  host.plan_sequence_ns = TimeNs(slope);
  host.commit_ns = TimeNs(line_at(
      steps, [](const StepRecord& r) { return r.commit_ns; }, slope));
  host.commit_sequence_ns = TimeNs(slope);
  std::vector<TimeNs> gaps;
  for (const StepRecord& r : steps) gaps.push_back(r.gap_ns);
  std::nth_element(gaps.begin(), gaps.begin() + ptrdiff_t(gaps.size() / 2), gaps.end());
  host.launch_ns = gaps[gaps.size() / 2];
  return host;
}

}  // namespace

Result<SimulatedServer> server_of_card(const std::string& name, const Checkpoint& checkpoint, int threads) {
  const Result<Card> card = card_of(name, threads);
  if (!card) return card.error();
  const ModelSpec& spec = checkpoint.spec();
  const LayerGroups groups = layer_groups(spec);
  const WeightBytes weights = weight_bytes(checkpoint, card->memory_gib > 0);
  SimulatedServer server;
  server.description = fmt::format("{} on {}", checkpoint.path(), name);
  server.card = card->memory_gib > 0;
  const ShapeCost shape = shape_of(checkpoint, groups, weights.read);
  server.cost = Roofline{shape, card->limits};
  server.context = spec.context;
  for (const LayerGroups::Group& group : groups.groups) server.windows.push_back(group.window);
  server.kv_bytes_per_token = size_t(shape.kv_token_bytes);
  // Of a CPU's memory the size is no matter: the choice below is bounded by its sequences.
  constexpr double kActivationGib = 2;
  const double gib = server.card ? card->memory_gib * 0.9 - kActivationGib : 64;
  const double left = gib * double(size_t{1} << 30) - double(weights.all);
  if (server.card && left <= 0)
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("{:.1f} GB of weights do not fit --card {}", double(weights.all) / 1e9, name)};
  server.memory_bytes = size_t(std::max(0.0, left));
  return server;
}

SimulatedServer server_of_records(const RecordedSteps& recorded) {
  std::vector<MeasuredStep> steps;
  for (const StepRecord& r : recorded.steps) steps.push_back({recorded.work(r), seconds(r.execute_ns)});
  const RecordedServer& from = recorded.server;
  SimulatedServer server;
  server.description = fmt::format("{} on {}", from.model, from.device);
  server.fit = fit_cost(steps);
  server.cost = server.fit->cost;
  server.host = host_of(recorded.steps);
  server.card = from.card;
  server.blocks = from.blocks, server.block_tokens = from.block_tokens, server.context = from.context;
  server.max_sequences = from.max_sequences;
  server.step_tokens = from.step_tokens, server.mixed_prompt_tokens = from.mixed_prompt_tokens;
  server.windows = from.windows;
  server.kv_bytes_per_token = size_t(from.kv_bytes_per_token);
  return server;
}

Result<SimulationSetup> simulation_setup(const SimulatedServer& server, const EngineConfig& wished) {
  EngineConfig config = wished;
  Result<Batching> batching = batching_of(config.batching, config.max_sequences);
  if (!batching) return std::move(batching).error();
  // What is automatic was recorded; but it grows to fit a batch, as at a start.
  if (config.max_sequences == 0 && server.max_sequences)
    config.max_sequences = std::max(server.max_sequences,
                                    batching->kind == BatchingKind::windowed ? batching->window.max_batch : 0);
  if (config.step_tokens == 0) config.step_tokens = server.step_tokens;
  if (config.mixed_prompt_tokens == 0) config.mixed_prompt_tokens = server.mixed_prompt_tokens;
  DeviceInfo device;
  device.memory_total = server.card ? size_t{1} << 40 : 0;
  config = settled(config, device);

  SimulationSetup setup;
  const Result<Policy> policy = policy_of(config);
  if (!policy) return policy.error();
  setup.policy = *policy;
  setup.max_requests = setup.policy.max_running + setup.policy.max_queue;
  setup.policy.max_queue = setup.max_requests;
  KvWish wish;
  wish.layout.block_tokens = server.block_tokens ? server.block_tokens : config.block_tokens;
  wish.layout.windows = server.windows;
  wish.layout.max_length = config.max_context ? std::min(config.max_context, server.context) : server.context;
  wish.layout.max_step_tokens = setup.policy.step_tokens;
  wish.layout.steps_in_flight = kStepsInFlight;
  if (const auto tiering = tiering_of(config.kv)) wish.layout.tiering = *tiering;
  wish.layout.whole_context = config.kv.allocation != "paged";
  if (const int forced = config.kv.sliding_window)
    for (int& window : wish.layout.windows) window = window ? std::min(window, forced) : forced;
  wish.block_bytes = server.kv_bytes_per_token * size_t(wish.layout.block_tokens);
  wish.kv_bytes = config.kv_bytes ? config.kv_bytes : size_t(server.blocks) * wish.block_bytes;
  wish.free_bytes = server.memory_bytes ? server.memory_bytes : wish.kv_bytes * 4;
  wish.max_sequences = config.max_sequences;
  if (server.card && server.memory_bytes) wish.card = {server.memory_bytes + CardMemory::kKeptBack, 0, 0, 1};
  const Result<KvSize> kv = size_kv(wish);
  if (!kv) return kv.error();
  setup.layout = kv->layout;
  setup.blocks = kv->blocks;
  setup.cost = server.cost;
  setup.host = server.host;
  return setup;
}

}  // namespace sluice::cli
