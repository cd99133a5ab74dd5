// `sluice bench engine`: the steps that serve, without a scheduler (bench_rig.h). Prefill is of one sequence;
// decode is of `batch` sequences at once, greedy sampling included.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/bench_rig.h"
#include "cli/commands.h"
#include "cli/load_progress.h"
#include "cli/machine.h"
#include "engine/make_engine.h"
#include "model/checkpoint.h"
#include "model/slots.h"
#include "server/json_fields.h"

namespace sluice::cli {
namespace {

double median(std::vector<double> v) {
  if (v.empty()) return NAN;
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

void tell(const std::string& what) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K{}", what);
}

// The counts that shares of limits rest on, from the model's shape alone.
class Work {
 public:
  Work(const ModelSpec& spec, const Weights& weights, const KvGeometry& kv)
      : spec_(spec), weight_bytes_(weights.bytes_per_token()), kv_(kv) {
    for (const Slot& slot : slots_of(spec))
      if (slot.matrix && slot.name.starts_with("blk.")) layer_weights_ += double(slot.rows) * double(slot.cols);
  }

  // Bytes that one step must read: all weights once, and each sequence's keys and values.
  double decode_bytes(int batch, double length, double kv_share) const {
    const double per_token = 2.0 * spec_.kv_heads * spec_.head_dim * double(dtype_size(kv_.dtype)) * kv_share;
    double kv = 0;
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const int window = spec_.layer_window(layer);
      const bool sparse = kv_.sparse.applies(1, int(length), window);
      kv += per_token * (sparse ? kv_.sparse.kept_tokens(int(length), kv_.block_tokens) : seen(layer, length));
    }
    return double(weight_bytes_) + batch * kv;
  }

  // Operations of a prompt chunk at a depth: products with the weights, attention, logits of the last row.
  double prefill_ops(int tokens, int depth) const {
    double ops = 2 * layer_weights_ * tokens + 2.0 * spec_.vocab * spec_.hidden;
    for (int layer = 0; layer < spec_.layers; ++layer)
      for (int i = 0; i < tokens; ++i) ops += 4.0 * spec_.heads * spec_.head_dim * seen(layer, depth + i + 1);
    return ops;
  }

 private:
  double seen(int layer, double length) const {
    return spec_.layer_window(layer) ? std::min(length, double(spec_.layer_window(layer))) : length;
  }
  const ModelSpec& spec_;
  size_t weight_bytes_;
  KvGeometry kv_;
  double layer_weights_ = 0;
};

RigSizes sizes_of(const BenchEngineOptions& options) {
  RigSizes s;
  s.max_batch = *std::max_element(options.batch.begin(), options.batch.end());
  s.max_length = *std::max_element(options.depth.begin(), options.depth.end()) +
                 std::max(*std::max_element(options.prompt_tokens.begin(), options.prompt_tokens.end()),
                          options.generate_tokens) +
                 1;
  return s;
}

// What shares refer to, measured on this machine; NaN: not known.
struct Limits {
  double read_bytes_s = NAN;
  double peak_ops_s = NAN;                            // of the arithmetic that the weights' products use
  std::vector<std::pair<const char*, double>> shown;  // JSON names, Gop/s
};

// A card measures itself, if it has the memory that this takes; any other device is the machine's processors.
Limits measure_limits(Backend& backend, bool integer_weights) {
  tell("measuring what the device can do");
  const DeviceInfo device = backend.info();
  if (device.is_card()) {
    const DeviceRates rates = backend.measure_rates();
    const auto known = [](double rate) { return rate > 0 ? rate : NAN; };
    const double matrix = known(rates.matrix_ops_s);
    return {known(rates.read_bytes_s), matrix, {{"bf16_gop_s", matrix / 1e9}}};
  }
  const MachineLimits m = measure_machine(std::max(1, device.threads));
  return {m.read_bytes_s,
          integer_weights ? m.int8_ops_s : m.f32_ops_s,
          {{"int8_gop_s", m.int8_ops_s / 1e9}, {"f32_gop_s", m.f32_ops_s / 1e9}}};
}

struct Row {
  int batch = 1, prompt_tokens = 0, generate_tokens = 0, depth = 0;
  double prefill_s = NAN, step_s = NAN, bandwidth_share = NAN, compute_share = NAN;
  double device_s = NAN, idle_s = NAN;                // of a decode step: busy, and waiting for the host
  std::vector<double> prefill_samples, step_samples;  // seconds
  int replayed = 0;                                   // decode steps of a run that were replayed
  double kv_share = 1;                                // of its bytes in full precision, what the cache takes

  double prefill_tok_s() const { return prompt_tokens / prefill_s; }
  double decode_tok_s() const { return batch / step_s; }
};

std::vector<RunTime> time_prefill(BenchRig& rig, int depth, int tokens, int repeat) {
  std::vector<RunTime> runs;
  if (rig.records())
    rig.prefill(depth, tokens);  // a card's library looks up what it needs when it meets a shape
  for (int i = 0; i < repeat; ++i) {
    tell(fmt::format("prefill of {} at depth {}: {} of {}", tokens, depth, i + 1, repeat));
    runs.push_back(rig.prefill(depth, tokens));
  }
  return runs;
}

std::vector<RunTime> time_decode(BenchRig& rig, int batch, int depth, int tokens, int repeat) {
  std::vector<RunTime> runs;
  rig.decode(batch, depth, 2 * kStepsInFlight);  // one record for each of the steps under way
  for (int i = 0; i < repeat; ++i) {
    tell(fmt::format("decode of {} at depth {}: {} of {}", batch, depth, i + 1, repeat));
    runs.push_back(rig.decode(batch, depth, tokens));
  }
  return runs;
}

// Seconds of each run, per `parts`.
std::vector<double> each(const std::vector<RunTime>& runs, double RunTime::*what, int parts) {
  std::vector<double> out;
  for (const RunTime& run : runs) out.push_back(run.*what / parts);
  return out;
}

Row make_row(const Work& work, const Limits& limits, double kv_share, int batch, int depth, int prompt_tokens,
             int generate_tokens, const std::vector<RunTime>& prefill, const std::vector<RunTime>& decode) {
  Row row;
  row.batch = batch, row.prompt_tokens = prompt_tokens, row.generate_tokens = generate_tokens,
  row.depth = depth;
  row.prefill_samples = each(prefill, &RunTime::wall_s, 1);
  row.step_samples = each(decode, &RunTime::wall_s, generate_tokens);
  row.prefill_s = median(row.prefill_samples), row.step_s = median(row.step_samples);
  row.device_s = median(each(decode, &RunTime::device_s, generate_tokens));
  row.idle_s = median(each(decode, &RunTime::idle_s, generate_tokens));
  if (!decode.empty()) row.replayed = decode.back().replayed;
  row.kv_share = kv_share;
  row.bandwidth_share =
      work.decode_bytes(batch, depth + generate_tokens / 2.0, kv_share) / row.step_s / limits.read_bytes_s;
  row.compute_share = work.prefill_ops(prompt_tokens, depth) / row.prefill_s / limits.peak_ops_s;
  return row;
}

std::vector<Row> measure(BenchRig& rig, const Work& work, const BenchEngineOptions& o, const Limits& limits) {
  std::vector<Row> rows;
  for (const int depth : o.depth) {
    if (depth > 0) tell(fmt::format("filling the cache to depth {}", depth));
    rig.fill(depth);
    std::vector<std::vector<RunTime>> prefill;
    for (const int tokens : o.prompt_tokens)
      prefill.push_back(tokens ? time_prefill(rig, depth, tokens, o.repeat) : std::vector<RunTime>());
    for (const int batch : o.batch) {
      rig.spread_depth(batch, depth);
      const std::vector<RunTime> decode = o.generate_tokens
                                              ? time_decode(rig, batch, depth, o.generate_tokens, o.repeat)
                                              : std::vector<RunTime>();
      for (size_t p = 0; p < o.prompt_tokens.size(); ++p)
        rows.push_back(make_row(work, limits, rig.kv_share(), batch, depth, o.prompt_tokens[p],
                                o.generate_tokens, prefill[p], decode));
    }
  }
  tell("");
  return rows;
}

// What was measured, for both forms of output.
struct Report {
  const Checkpoint& checkpoint;
  const Weights& weights;
  const DeviceInfo& device;
  const Limits& limits;
  int step_tokens;
  const std::vector<Row>& rows;
};

void print_json(const Report& report) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  out.key("machine").begin_object();
  out.key("processor")
      .string(report.device.name)
      .key("instruction_set")
      .string(report.device.instruction_set)
      .key("threads")
      .integer(report.device.threads);
  write_number(out, "read_gb_s", report.limits.read_bytes_s / 1e9);
  for (const auto& [name, rate] : report.limits.shown) write_number(out, name, rate);
  if (!report.device.state.empty()) out.key("state").string(report.device.state);
  out.end_object();
  out.key("model").begin_object();
  out.key("path").string(report.checkpoint.path());
  out.key("architecture").string(report.checkpoint.spec().architecture);
  out.key("weight_bytes").integer(int64_t(report.weights.bytes()));
  out.key("bytes_per_token").integer(int64_t(report.weights.bytes_per_token()));
  out.end_object();
  out.key("results").begin_array();
  for (const Row& r : report.rows) {
    out.begin_object();
    out.key("batch").integer(r.batch).key("prompt_tokens").integer(r.prompt_tokens);
    out.key("generate_tokens").integer(r.generate_tokens).key("depth").integer(r.depth);
    write_number(out, "prefill_tok_s", r.prefill_tok_s()), write_number(out, "decode_tok_s", r.decode_tok_s());
    write_number(out, "prefill_ms", r.prefill_s * 1e3), write_number(out, "step_ms", r.step_s * 1e3);
    write_number(out, "device_ms", r.device_s * 1e3), write_number(out, "gap_ms", r.idle_s * 1e3);
    out.key("replayed").integer(r.replayed);
    write_number(out, "kv_share", r.kv_share);
    write_number(out, "bandwidth_share", r.bandwidth_share),
        write_number(out, "compute_share", r.compute_share);
    out.key("samples").begin_array();
    for (size_t i = 0; i < std::max(r.prefill_samples.size(), r.step_samples.size()); ++i) {
      out.begin_object();
      write_number(out, "prefill_ms", i < r.prefill_samples.size() ? r.prefill_samples[i] * 1e3 : NAN);
      write_number(out, "step_ms", i < r.step_samples.size() ? r.step_samples[i] * 1e3 : NAN);
      out.end_object();
    }
    out.end_array().end_object();
  }
  out.end_array().end_object();
  fmt::print("{}\n", json);
}

std::string cell(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

void print_table(const Report& report) {
  const DeviceInfo& device = report.device;
  fmt::print("{}\n{}, {}{}{}{}: reads {} GB/s", report.checkpoint.path(), device.name, device.instruction_set,
             device.threads ? fmt::format(", {} threads", device.threads) : "",
             device.state.empty() ? "" : ", ", device.state, cell(report.limits.read_bytes_s / 1e9, "{:.1f}"));
  for (const auto& [name, rate] : report.limits.shown)
    fmt::print(", {} {} Gop/s", std::string_view(name).substr(0, std::string_view(name).find('_')),
               cell(rate, "{:.0f}"));
  fmt::print("\nweights {:.1f} MB, of which a decode step reads {:.1f} MB; prompts in steps of {} tokens\n\n",
             double(report.weights.bytes()) / 1e6, double(report.weights.bytes_per_token()) / 1e6,
             report.step_tokens);
  fmt::print("{:>6}{:>7} |{:>8}{:>11}{:>10}{:>9} |{:>12}{:>10}{:>9}{:>11}\n", "batch", "depth", "prompt",
             "tok/s", "ms", "of peak", "decode tok/s", "step ms", "gap ms", "of bandw.");
  for (const Row& r : report.rows) {
    fmt::print("{:>6}{:>7} |{:>8}{:>11}{:>10}{:>9} |{:>12}{:>10}{:>9}{:>11}\n", r.batch, r.depth,
               r.prompt_tokens, cell(r.prefill_tok_s(), "{:.1f}"), cell(r.prefill_s * 1e3, "{:.1f}"),
               cell(r.compute_share * 100, "{:.1f} %"), cell(r.decode_tok_s(), "{:.1f}"),
               cell(r.step_s * 1e3, "{:.3f}"), cell(r.idle_s * 1e3, "{:.3f}"),
               cell(r.bandwidth_share * 100, "{:.1f} %"));
  }
  const auto is_impossible = [](const Row& r) { return r.bandwidth_share > 1 || r.compute_share > 1; };
  if (std::any_of(report.rows.begin(), report.rows.end(), is_impossible))
    fmt::print(
        stderr,
        "shares above 100 %: the machine's own limits were measured beside other work and are too low (run it "
        "again on an idle machine), or the weights stay in a processor cache\n");
}

Status check(const Checkpoint& checkpoint, const RigSizes& sizes) {
  if (sizes.max_length > checkpoint.spec().context)
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("--depth, --prompt-tokens and --generate-tokens add up to {}; the model's context is {}",
                    sizes.max_length, checkpoint.spec().context)};
  return {};
}

}  // namespace

int bench_engine(const Config& config, const BenchEngineOptions& options) {
  Result<std::unique_ptr<Checkpoint>> opened = open_checkpoint(config.model.path);
  if (!opened) return failure(opened.error());
  const Checkpoint& checkpoint = **opened;
  const RigSizes sizes = sizes_of(options);
  if (Status status = check(checkpoint, sizes); !status) return failure(status.error());
  EngineConfig engine = config.model.engine;
  engine.max_sequences = sizes.max_batch;
  const ModelSpec spec = with_window(checkpoint.spec(), engine.kv.sliding_window);
  Result<std::unique_ptr<Backend>> backend = backend_for(spec, engine, config.model.device, config.model.cpu);
  if (!backend) return failure(backend.error());
  const bool integer_weights = !checkpoint.rows("blk.0.ffn_down.weight")->format().is_float();
  const Limits limits = measure_limits(**backend, integer_weights);

  LoadProgressLine progress;
  const auto tell = [&](size_t done, size_t total) {
    progress.show("weights", total ? double(done) / double(total) : 1);
  };
  Result<Weights> weights = load_weights(checkpoint, spec, **backend, tell, engine.fusion);
  progress.clear();
  if (!weights) return failure(weights.error());
  auto rig = BenchRig::make(spec, *weights, **backend, config.model.engine, sizes);
  if (!rig) return failure(rig.error());

  const Work work(spec, *weights, (*rig)->geometry());
  const std::vector<Row> rows = measure(**rig, work, options, limits);
  const DeviceInfo device = (*backend)->info();
  const Report report{checkpoint, *weights, device, limits, (*rig)->step_tokens(), rows};
  options.json ? print_json(report) : print_table(report);
  return 0;
}

}  // namespace sluice::cli
