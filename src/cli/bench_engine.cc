// `sluice bench engine`: decoder and backend driven directly, one step at a time, as the engine's loop does it.
// Prefill is of one sequence; decode is of `batch` sequences at once, greedy sampling included.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/load_progress.h"
#include "cli/machine.h"
#include "engine/make_engine.h"
#include "model/checkpoint.h"
#include "model/decoder.h"
#include "model/slots.h"
#include "server/json_writer.h"
#include "tensor/cpu/topology.h"

namespace sluice::cli {
namespace {

double median(std::vector<double> v) {
  if (v.empty()) return NAN;
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

// The counts that shares of limits rest on, from the model's shape alone.
class Work {
 public:
  Work(const ModelSpec& spec, const Weights& weights, size_t kv_element_bytes)
      : spec_(spec), weight_bytes_(weights.bytes_per_token()), kv_element_bytes_(kv_element_bytes) {
    for (const Slot& slot : slots_of(spec))
      if (slot.matrix && slot.name.starts_with("blk.")) layer_weights_ += double(slot.rows) * double(slot.cols);
  }

  // Bytes that one step must read: all weights once, and each sequence's keys and values.
  double decode_bytes(int batch, double length) const {
    const double per_token = 2.0 * spec_.kv_heads * spec_.head_dim * double(kv_element_bytes_);
    double kv = 0;
    for (int layer = 0; layer < spec_.layers; ++layer) kv += per_token * seen(layer, length);
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
    return spec_.layer_windowed(layer) ? std::min(length, double(spec_.window)) : length;
  }
  const ModelSpec& spec_;
  size_t weight_bytes_;
  size_t kv_element_bytes_;
  double layer_weights_ = 0;
};

struct Sizes {
  int max_tokens = 0;  // of a step
  int max_batch = 0;
  int max_length = 0;  // of a sequence
};

Sizes sizes_of(const BenchEngineOptions& options, const EngineConfig& engine) {
  Sizes s;
  s.max_batch = *std::max_element(options.batch.begin(), options.batch.end());
  s.max_tokens = std::max(engine.step_tokens, s.max_batch);
  s.max_length = *std::max_element(options.depth.begin(), options.depth.end()) +
                 std::max(*std::max_element(options.prompt_tokens.begin(), options.prompt_tokens.end()),
                          options.generate_tokens) +
                 1;
  return s;
}

// A loaded model with room in the cache for `max_batch` sequences, and steps over it.
class Rig {
 public:
  Rig(const Checkpoint& checkpoint, Weights weights, Backend& backend, const Sizes& sizes, int block_tokens)
      : spec_(checkpoint.spec()),
        weights_(std::move(weights)),
        backend_(backend),
        sizes_(sizes),
        groups_(layer_groups(spec_)) {
    pool_.geometry = {block_tokens, groups_.layers_per_group, spec_.kv_heads, spec_.head_dim,
                      backend.kv_dtype()};
    pool_.block_bytes = backend.kv_block_bytes(pool_.geometry);
    stride_ = (sizes.max_length + block_tokens - 1) / block_tokens;
    backend.reserve({.max_tokens = sizes.max_tokens,
                     .max_sequences = sizes.max_batch,
                     .max_columns = std::max({spec_.hidden, spec_.ffn, spec_.heads * spec_.head_dim}),
                     .max_heads = spec_.heads,
                     .head_dim = spec_.head_dim,
                     .max_context = stride_ * block_tokens,
                     .vocab = spec_.vocab});
    decoder_ = std::make_unique<Decoder>(spec_, groups_, weights_, backend, sizes.max_tokens, sizes.max_batch);
    const size_t group_count = groups_.groups.size(), per_group = size_t(stride_) * size_t(sizes.max_batch);
    memory_ = backend.alloc(group_count * per_group * pool_.block_bytes);
    pool_.data = memory_.as<std::byte>();
    for (size_t g = 0; g < group_count; ++g) {
      tables_.emplace_back(per_group);
      std::iota(tables_.back().begin(), tables_.back().end(), int32_t(g * per_group));
    }
    last_ids_.assign(size_t(sizes.max_batch), 0);
  }

  const Weights& weights() const { return weights_; }
  const ModelSpec& spec() const { return spec_; }
  size_t kv_element_bytes() const { return dtype_size(pool_.geometry.dtype); }

  // `tokens` prompt tokens of sequence 0 from position `depth` on, in steps of at most max_tokens. Seconds.
  double prefill(int depth, int tokens) {
    const TimeNs start = now_ns();
    for (int done = 0; done < tokens;) {
      const int count = std::min(tokens - done, sizes_.max_tokens);
      begin(1);
      for (int i = 0; i < count; ++i) add_row(0, depth + done + i, made_up_id(depth + done + i));
      done += count;
      run(done == tokens);
    }
    return seconds(now_ns() - start);
  }

  // The first `depth` tokens of sequence 0 to the others: same work for attention, without computing it again.
  void spread_depth(int batch, int depth) {
    std::vector<std::pair<int32_t, int32_t>> copies;
    const int used = (depth + pool_.geometry.block_tokens - 1) / pool_.geometry.block_tokens;
    for (const std::vector<int32_t>& table : tables_)
      for (int s = 1; s < batch; ++s)
        for (int b = 0; b < used; ++b) copies.emplace_back(table[size_t(b)], table[size_t(s * stride_ + b)]);
    backend_.copy_blocks(pool_.data, pool_.block_bytes, copies);
  }

  // `tokens` steps of `batch` sequences from position `depth` on. Seconds.
  double decode(int batch, int depth, int tokens) {
    std::vector<int32_t> ids(size_t(batch), 1);
    const TimeNs start = now_ns();
    for (int i = 0; i < tokens; ++i) {
      begin(batch);
      for (int s = 0; s < batch; ++s) add_row(s, depth + i, ids[size_t(s)]);
      run(true);
      for (int s = 0; s < batch; ++s) ids[size_t(s)] = results_[size_t(s)].id;
    }
    return seconds(now_ns() - start);
  }

 private:
  // Ordinary ids all over the vocabulary, so that embedding rows come from memory.
  int32_t made_up_id(int position) const {
    return int32_t((uint32_t(position) * 7919u + 257u) % uint32_t(spec_.vocab));
  }

  void begin(int sequences) {
    sequences_ = sequences;
    ids_.clear(), positions_.clear(), row_sequence_.clear(), row_starts_.clear(), lengths_.clear(),
        logit_index_.clear();
  }
  void add_row(int sequence, int position, int32_t id) {
    if (row_sequence_.empty() || row_sequence_.back() != sequence) {
      row_starts_.push_back(int32_t(ids_.size()));
      lengths_.push_back(0);
    }
    ids_.push_back(id), positions_.push_back(position), row_sequence_.push_back(sequence);
    lengths_.back() = position + 1;
  }

  void run(bool sample) {
    row_starts_.push_back(int32_t(ids_.size()));
    if (sample)
      for (int s = 0; s < sequences_; ++s) logit_index_.push_back(row_starts_[size_t(s) + 1] - 1);
    BatchInput b;
    b.tokens = int(ids_.size()), b.sequences = sequences_, b.logit_rows = int(logit_index_.size());
    b.token_ids = ids_.data(), b.positions = positions_.data(), b.row_sequence = row_sequence_.data();
    b.row_starts = row_starts_.data(), b.kv_lengths = lengths_.data(), b.logit_index = logit_index_.data();
    b.last_ids = last_ids_.data(), b.table_stride = stride_, b.groups = int(tables_.size());
    for (size_t g = 0; g < tables_.size(); ++g) b.tables[g] = tables_[g].data();
    decoder_->forward(b, pool_);
    if (sample) {
      rows_.assign(size_t(sequences_), SampleRow{});
      for (int s = 0; s < sequences_; ++s) rows_[size_t(s)].slot = s;
      results_.assign(size_t(sequences_), SampleResult{});
      backend_.sample(
          {decoder_->logits(b, 0, sequences_), rows_, results_, last_ids_.data(), spec_.final_softcap});
    }
    backend_.finish_step();
  }

  const ModelSpec spec_;
  const Weights weights_;
  Backend& backend_;
  const Sizes sizes_;
  const LayerGroups groups_;
  KvPool pool_;
  Buffer memory_;
  std::unique_ptr<Decoder> decoder_;
  int stride_ = 0;
  int sequences_ = 0;
  std::vector<std::vector<int32_t>> tables_;  // per group [max_batch, stride_]
  std::vector<int32_t> ids_, positions_, row_sequence_, row_starts_, lengths_, logit_index_, last_ids_;
  std::vector<SampleRow> rows_;
  std::vector<SampleResult> results_;
};

struct Row {
  int batch = 1, prompt_tokens = 0, generate_tokens = 0, depth = 0;
  double prefill_s = NAN, step_s = NAN, bandwidth_share = NAN, compute_share = NAN;
  std::vector<double> prefill_samples, step_samples;  // seconds

  double prefill_tok_s() const { return prompt_tokens / prefill_s; }
  double decode_tok_s() const { return batch / step_s; }
};

void tell(const std::string& what) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K{}", what);
}

std::vector<double> time_prefill(Rig& rig, int depth, int tokens, int repeat) {
  std::vector<double> samples;
  for (int i = 0; i < repeat; ++i) {
    tell(fmt::format("prefill of {} at depth {}: {} of {}", tokens, depth, i + 1, repeat));
    samples.push_back(rig.prefill(depth, tokens));
  }
  return samples;
}

std::vector<double> time_decode(Rig& rig, int batch, int depth, int tokens, int repeat) {
  std::vector<double> samples;
  rig.decode(batch, depth, 1);
  for (int i = 0; i < repeat; ++i) {
    tell(fmt::format("decode of {} at depth {}: {} of {}", batch, depth, i + 1, repeat));
    samples.push_back(rig.decode(batch, depth, tokens) / tokens);
  }
  return samples;
}

std::vector<Row> measure(Rig& rig, const BenchEngineOptions& o, const MachineLimits& limits,
                         bool integer_weights) {
  const Work work(rig.spec(), rig.weights(), rig.kv_element_bytes());
  std::vector<Row> rows;
  rig.prefill(0, 16);  // warm
  for (const int depth : o.depth) {
    if (depth > 0) tell(fmt::format("filling the cache to depth {}", depth)), rig.prefill(0, depth);
    std::vector<std::vector<double>> prefill;
    for (const int tokens : o.prompt_tokens)
      prefill.push_back(tokens ? time_prefill(rig, depth, tokens, o.repeat) : std::vector<double>());
    for (const int batch : o.batch) {
      rig.spread_depth(batch, depth);
      const std::vector<double> steps = o.generate_tokens
                                            ? time_decode(rig, batch, depth, o.generate_tokens, o.repeat)
                                            : std::vector<double>();
      for (size_t p = 0; p < o.prompt_tokens.size(); ++p) {
        Row row;
        row.batch = batch, row.prompt_tokens = o.prompt_tokens[p], row.generate_tokens = o.generate_tokens,
        row.depth = depth;
        row.prefill_samples = prefill[p], row.step_samples = steps;
        row.prefill_s = median(prefill[p]), row.step_s = median(steps);
        row.bandwidth_share =
            work.decode_bytes(batch, depth + o.generate_tokens / 2.0) / row.step_s / limits.read_bytes_s;
        row.compute_share = work.prefill_ops(row.prompt_tokens, depth) / row.prefill_s /
                            (integer_weights ? limits.int8_ops_s : limits.f32_ops_s);
        rows.push_back(std::move(row));
      }
    }
  }
  tell("");
  return rows;
}

void put(JsonWriter& out, const char* key, double value) {
  out.key(key);
  if (std::isfinite(value))
    out.number(value);
  else
    out.null();
}

void print_json(const Rig& rig, const Checkpoint& checkpoint, const DeviceInfo& device,
                const MachineLimits& limits, const std::vector<Row>& rows) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  out.key("machine").begin_object();
  out.key("processor")
      .string(device.name)
      .key("instruction_set")
      .string(device.instruction_set)
      .key("threads")
      .integer(device.threads);
  put(out, "read_gb_s", limits.read_bytes_s / 1e9);
  put(out, "int8_gop_s", limits.int8_ops_s / 1e9);
  put(out, "f32_gop_s", limits.f32_ops_s / 1e9);
  out.end_object();
  out.key("model").begin_object();
  out.key("path").string(checkpoint.path()).key("architecture").string(rig.spec().architecture);
  out.key("weight_bytes").integer(int64_t(rig.weights().bytes()));
  out.key("bytes_per_token").integer(int64_t(rig.weights().bytes_per_token()));
  out.end_object();
  out.key("results").begin_array();
  for (const Row& r : rows) {
    out.begin_object();
    out.key("batch").integer(r.batch).key("prompt_tokens").integer(r.prompt_tokens);
    out.key("generate_tokens").integer(r.generate_tokens).key("depth").integer(r.depth);
    put(out, "prefill_tok_s", r.prefill_tok_s()), put(out, "decode_tok_s", r.decode_tok_s());
    put(out, "prefill_ms", r.prefill_s * 1e3), put(out, "step_ms", r.step_s * 1e3);
    put(out, "bandwidth_share", r.bandwidth_share), put(out, "compute_share", r.compute_share);
    out.key("samples").begin_array();
    for (size_t i = 0; i < std::max(r.prefill_samples.size(), r.step_samples.size()); ++i) {
      out.begin_object();
      put(out, "prefill_ms", i < r.prefill_samples.size() ? r.prefill_samples[i] * 1e3 : NAN);
      put(out, "step_ms", i < r.step_samples.size() ? r.step_samples[i] * 1e3 : NAN);
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

void print_table(const Rig& rig, const Checkpoint& checkpoint, const DeviceInfo& device,
                 const MachineLimits& limits, const std::vector<Row>& rows) {
  fmt::print("{}\n{}, {}, {} threads: reads {:.1f} GB/s, int8 {:.0f} GOP/s, f32 {:.0f} GFLOP/s\n",
             checkpoint.path(), device.name, device.instruction_set, device.threads, limits.read_bytes_s / 1e9,
             limits.int8_ops_s / 1e9, limits.f32_ops_s / 1e9);
  fmt::print("weights {:.1f} MB, of which a decode step reads {:.1f} MB\n\n",
             double(rig.weights().bytes()) / 1e6, double(rig.weights().bytes_per_token()) / 1e6);
  fmt::print("{:>6}{:>7} |{:>8}{:>11}{:>10}{:>9} |{:>11}{:>10}{:>11}\n", "batch", "depth", "prompt", "tok/s",
             "ms", "of peak", "decode tok/s", "step ms", "of bandw.");
  for (const Row& r : rows) {
    fmt::print("{:>6}{:>7} |{:>8}{:>11}{:>10}{:>9} |{:>12}{:>10}{:>11}\n", r.batch, r.depth, r.prompt_tokens,
               cell(r.prefill_tok_s(), "{:.1f}"), cell(r.prefill_s * 1e3, "{:.1f}"),
               cell(r.compute_share * 100, "{:.1f} %"), cell(r.decode_tok_s(), "{:.1f}"),
               cell(r.step_s * 1e3, "{:.2f}"), cell(r.bandwidth_share * 100, "{:.1f} %"));
  }
}

Status check(const BenchEngineOptions& options, const Checkpoint& checkpoint, const Sizes& sizes,
             const Config& config) {
  if (config.model.device != "auto" && config.model.device != "cpu")
    return Error{ErrorCode::kUnsupported,
                 "device " + config.model.device + ": this build runs on the CPU only"};
  if (sizes.max_length > checkpoint.spec().context)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("depth and tokens add up to {}; the model's context is {}", sizes.max_length,
                             checkpoint.spec().context)};
  return {};
}

}  // namespace

int bench_engine(const Config& config, const BenchEngineOptions& options) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return failure(checkpoint.error());
  const Sizes sizes = sizes_of(options, settled(config.model.engine, {}));
  if (Status status = check(options, **checkpoint, sizes, config); !status) return failure(status.error());

  // Before the backend has its own team of threads, so that the cores are free.
  const int threads = config.model.cpu.threads > 0 ? config.model.cpu.threads : cpu::usable_cores();
  tell("measuring what the machine can do");
  const MachineLimits limits = measure_machine(threads);
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend(config.model.cpu);
  if (!backend) return failure(backend.error());

  LoadProgressLine progress;
  Result<Weights> weights = load_weights(
      **checkpoint, (*checkpoint)->spec(), **backend,
      [&](size_t done, size_t total) { progress.show("weights", total ? double(done) / double(total) : 1); });
  progress.clear();
  if (!weights) return failure(weights.error());
  const bool integer_weights = !weights->layers.front().down.parts.front().format.is_float();
  {
    Rig rig(**checkpoint, std::move(*weights), **backend, sizes, config.model.engine.block_tokens);
    const std::vector<Row> rows = measure(rig, options, limits, integer_weights);
    if (options.json)
      print_json(rig, **checkpoint, (*backend)->info(), limits, rows);
    else
      print_table(rig, **checkpoint, (*backend)->info(), limits, rows);
  }
  return 0;
}

}  // namespace sluice::cli
