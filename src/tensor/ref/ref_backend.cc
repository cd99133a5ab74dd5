// The judge: every op as its definition reads, in float with double sums, one thread, weights kept as float32.
// Nothing here is tuned; when another backend disagrees beyond its tolerance, that one is wrong.
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tensor/backend.h"
#include "tensor/fp8.h"
#include "tensor/half.h"
#include "tensor/sampling.h"

namespace sluice {
namespace {

float load_element(const std::byte* data, WeightElement element, int64_t i) {
  if (element == WeightElement::f32) {
    float f;
    std::memcpy(&f, data + i * 4, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, data + i * 2, 2);
  return element == WeightElement::f16 ? f16_to_f32(h) : bf16_to_f32(h);
}

// One decoded row as floats.
void dequantize(const DecodedRow& row, const WeightFormat& format, int64_t cols, float* out) {
  for (int64_t i = 0; i < cols; ++i) {
    if (format.is_float()) {
      out[i] = load_element(row.raw.data(), format.element, i);
    } else {
      const int64_t g = i / format.group;
      if (format.element == WeightElement::fp8) {
        out[i] = row.scale[g] * e4m3_to_f32(uint8_t(row.q[i]));
        continue;
      }
      out[i] = row.scale[g] * float(row.q[i]) + (format.has_min ? row.min[g] : 0.0f);
    }
  }
}

// The row of a packed weight (its parts hold f32 [rows, cols] here).
const float* weight_row(const Weight& w, int64_t row) {
  for (const Weight::Part& p : w.parts) {
    if (row < p.row_begin + p.rows) return p.data.as<float>() + (row - p.row_begin) * w.cols;
  }
  CHECK(false, "row beyond the weight");
}

void normalize(const float* x, const float* weight, float eps, int64_t n, float* out) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * x[i];
  const float scale = float(1 / std::sqrt(squares / double(n) + eps));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

// Rotates pairs (i, i + rotary / 2) of one head.
void rotate(float* x, int rotary, const float* inv_freq, float magnitude, int position) {
  const int half = rotary / 2;
  for (int i = 0; i < half; ++i) {
    const float angle = float(position) * inv_freq[i];
    const float c = std::cos(angle) * magnitude, s = std::sin(angle) * magnitude;
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

// A block here is [layers][k, v][G][block_tokens][D] of the cache's type. In a small tier too: rounded to what
// the tier can say, but not packed, so a slot is four times as large as a block where there are tiers.
struct KvView {
  const KvGeometry& g;
  const KvLayer& kv;

  std::byte* element(int32_t block, bool value, int head, int token, int d) const {
    CHECK(block >= 0, "a block behind the window was touched");
    const int64_t i =
        ((((int64_t(kv.layer_in_group) * 2 + value) * g.kv_heads + head) * g.block_tokens) + token) *
            g.head_dim +
        d;
    return kv.pool + size_t(kv_first_unit(block)) * (kv.block_bytes / kSlotUnits) +
           size_t(i) * dtype_size(g.dtype);
  }
  void store(int32_t block, bool value, int head, int token, int d, float x) const {
    std::byte* at = element(block, value, head, token, d);
    if (g.dtype == DType::f32) {
      std::memcpy(at, &x, 4);
    } else {
      const uint16_t h = f32_to_f16(x);
      std::memcpy(at, &h, 2);
    }
  }
  float load(int32_t block, bool value, int head, int token, int d) const {
    const std::byte* at = element(block, value, head, token, d);
    return load_element(at, g.dtype == DType::f32 ? WeightElement::f32 : WeightElement::f16, 0);
  }
};

float as_half(float x) { return f16_to_f32(f32_to_f16(x)); }

// x as the nearest number of four significant bits, as E4M3 has them; |x| <= 448.
float as_e4m3(float x) {
  int exponent;
  std::frexp(x, &exponent);
  const float last_place = std::ldexp(1.0f, std::max(exponent - 4, -9));
  return std::nearbyint(x / last_place) * last_place;
}

// Rounds n values to what a tier says of them with one scale (and minimum).
void round_to_tier(KvTier tier, std::span<float> x) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float largest = std::max(std::fabs(*low), std::fabs(*high));
  if (tier == KvTier::int4) {
    const float min = as_half(*low), scale = as_half((*high - min) / 15);
    for (float& v : x)
      v = min + scale * std::clamp(scale > 0 ? std::nearbyint((v - min) / scale) : 0.0f, 0.0f, 15.0f);
    return;
  }
  const float most = tier == KvTier::int8 ? 127 : 448;
  const float scale = as_half(largest / most);
  for (float& v : x) {
    const float q = std::clamp(scale > 0 ? v / scale : 0.0f, -most, most);
    v = scale * (tier == KvTier::int8 ? std::nearbyint(q) : as_e4m3(q));
  }
}

int32_t block_of(const BatchInput& b, int group, int row, int position, int block_tokens) {
  return b.tables[group][int64_t(b.row_sequence[row]) * b.table_stride + position / block_tokens];
}

// A row of a sequence that has no cached tokens belongs to nobody: it only fills a batch up to a size.
bool is_padding(const BatchInput& b, int row) { return b.kv_lengths[b.row_sequence[row]] == 0; }

float activate(float x, Activation a) {
  if (a == Activation::silu) return float(x / (1 + std::exp(-double(x))));
  const double inner = 0.7978845608028654 * (x + 0.044715 * double(x) * x * x);
  return float(0.5 * x * (1 + std::tanh(inner)));
}

class RefBackend final : public Backend {
 public:
  DeviceInfo info() const override {
    struct sysinfo s = {};
    sysinfo(&s);
    return {"reference", "scalar", 1, size_t(s.freeram) * s.mem_unit};
  }
  Buffer alloc(size_t bytes) override {
    void* p = std::calloc(1, bytes ? bytes : 1);
    CHECK(p != nullptr, "out of memory");
    return Buffer(this, p, bytes);
  }
  void free(void* data, size_t) override { std::free(data); }
  void copy_in(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void copy_out(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  Status reserve(const WorkspaceShape&) override { return {}; }
  DType activation_dtype() const override { return DType::f32; }
  DType kv_dtype() const override { return DType::f32; }
  size_t kv_block_bytes(const KvGeometry& g) const override {
    return size_t(g.layers_per_group) * 2 * g.kv_heads * g.block_tokens * g.head_dim * dtype_size(g.dtype) *
           (g.tiered ? kSlotUnits : 1);
  }

  Result<Weight> pack(std::span<const PackSource> sources) override {
    Weight w;
    w.cols = sources.empty() ? 0 : sources[0].rows->cols();
    DecodedRow row;
    for (const PackSource& s : sources) {
      if (s.rows->cols() != w.cols) {
        return Error{ErrorCode::kInvalidArgument, "matrices packed together differ in columns"};
      }
      Weight::Part part{w.rows, s.rows->rows(), s.rows->format(), alloc(size_t(s.rows->rows() * w.cols) * 4)};
      for (int64_t r = 0; r < part.rows; ++r) {
        s.rows->decode(s.row_order.empty() ? r : s.row_order[size_t(r)], row);
        dequantize(row, part.format, w.cols, part.data.as<float>() + r * w.cols);
      }
      w.rows += part.rows;
      w.parts.push_back(std::move(part));
    }
    return w;
  }

  void begin_step(const BatchInput&, const KvGeometry&, int) override {}

  void embed(const EmbedArgs& a) override {
    for (int t = 0; t < a.batch.tokens; ++t) {
      int32_t id = a.batch.token_ids[t];
      if (id < 0) id = a.batch.last_ids[-1 - id];
      CHECK(id >= 0 && id < a.table.rows, "token id beyond the vocabulary");
      const float* from = weight_row(a.table, id);
      for (int64_t i = 0; i < a.out.cols; ++i) a.out.row<float>(t)[i] = from[i] * a.scale;
    }
  }

  void rms_norm(const RmsNormArgs& a) override {
    for (int64_t t = 0; t < a.x.rows; ++t) {
      normalize(a.x.row<float>(t), a.weight, a.eps, a.x.cols, a.out.row<float>(t));
    }
  }

  void add_rms_norm(const AddRmsNormArgs& a) override {
    std::vector<float> added(size_t(a.x.cols));
    for (int64_t t = 0; t < a.x.rows; ++t) {
      const float* x = a.x.row<float>(t);
      if (a.post_weight) {
        normalize(x, a.post_weight, a.eps, a.x.cols, added.data());
      } else {
        added.assign(x, x + a.x.cols);
      }
      float* residual = a.residual.row<float>(t);
      for (int64_t i = 0; i < a.x.cols; ++i) residual[i] += added[size_t(i)];
      if (a.weight) normalize(residual, a.weight, a.eps, a.x.cols, a.out.row<float>(t));
    }
  }

  void linear(const LinearArgs& a) override {
    CHECK(a.x.cols == a.w.cols && a.out.cols == a.w.rows && a.out.rows == a.x.rows);
    for (int64_t n = 0; n < a.w.rows; ++n) {
      const float* w = weight_row(a.w, n);
      for (int64_t m = 0; m < a.x.rows; ++m) {
        const float* x = a.x.row<float>(m);
        double sum = a.bias ? a.bias[n] : 0;
        for (int64_t k = 0; k < a.w.cols; ++k) sum += double(x[k]) * w[k];
        a.out.row<float>(m)[n] = float(sum);
      }
    }
  }

  void rope_store_kv(const RopeStoreArgs& a) override {
    const int head_dim = a.geometry.head_dim, kv_heads = a.geometry.kv_heads;
    const KvView kv{a.geometry, a.kv};
    for (int t = 0; t < a.batch.tokens; ++t) {
      if (is_padding(a.batch, t)) continue;
      const int position = a.batch.positions[t];
      const int32_t block = block_of(a.batch, a.kv.group, t, position, a.geometry.block_tokens);
      const int slot = position % a.geometry.block_tokens;
      float* row = a.qkv.row<float>(t);
      for (int h = 0; h < a.heads + kv_heads; ++h) {
        float* x = row + h * head_dim;
        const float* norm = h < a.heads ? a.q_norm : a.k_norm;
        if (norm) normalize(x, norm, a.norm_eps, head_dim, x);
        rotate(x, a.rotary, a.inv_freq, a.rope_magnitude, position);
      }
      for (int g = 0; g < kv_heads; ++g) {
        for (int d = 0; d < head_dim; ++d) {
          kv.store(block, false, g, slot, d, row[(a.heads + g) * head_dim + d]);
          kv.store(block, true, g, slot, d, row[(a.heads + kv_heads + g) * head_dim + d]);
        }
      }
    }
  }

  void attention(const AttentionArgs& a) override {
    for (int t = 0; t < a.batch.tokens; ++t) {
      for (int h = 0; h < a.heads; ++h) attend(a, t, h);
    }
  }

  void act_mul(const ActMulArgs& a) override {
    const int64_t n = a.out.cols;
    for (int64_t t = 0; t < a.out.rows; ++t) {
      const float* x = a.gate_up.row<float>(t);
      for (int64_t i = 0; i < n; ++i) a.out.row<float>(t)[i] = activate(x[i], a.activation) * x[n + i];
    }
  }

  void gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) override {
    for (int64_t i = 0; i < out.rows; ++i) {
      std::memcpy(out.row<float>(i), x.row<float>(index[i]), size_t(out.cols) * sizeof(float));
    }
  }

  void sample(const SampleArgs& a) override {
    using namespace sampling;
    const int vocab = int(a.logits.cols);
    const Kernels& k = plain_kernels();
    Scratch scratch;
    scratch.reserve(vocab);
    std::vector<SliceStats> stats(size_t(slice_count(vocab)));
    for (size_t r = 0; r < a.rows.size(); ++r) {
      float* logits = a.logits.row<float>(int64_t(r));
      if (a.softcap > 0) k.softcap(logits, vocab, a.softcap);
      for (size_t s = 0; s < stats.size(); ++s) stats[s] = slice_stats(k, logits, vocab, int(s), a.rows[r]);
      a.results[r] = sample_row(k, logits, vocab, a.rows[r], stats, scratch);
      if (a.rows[r].slot >= 0) a.last_ids[a.rows[r].slot] = a.results[r].id;
    }
  }

  void copy_blocks(std::byte* pool, size_t bytes,
                   std::span<const std::pair<int32_t, int32_t>> from_to) override {
    for (auto [from, to] : from_to) std::memcpy(pool + size_t(to) * bytes, pool + size_t(from) * bytes, bytes);
  }
  bool has_kv_tier(KvTier) const override { return true; }
  bool has_sparse_decode() const override { return true; }
  void move_blocks(const MoveBlocksArgs& a) override {
    for (int i = 0; i < a.batch.move_count; ++i)
      for (int layer = 0; layer < a.geometry.layers_per_group; ++layer)
        for (int head = 0; head < a.geometry.kv_heads; ++head)
          for (const bool value : {false, true})
            move_head({a.geometry, KvLayer{a.pool, a.block_bytes, layer, 0}}, a.batch.moves[i], value, head);
  }
  void finish_step() override {}

 private:
  // Tokens are the rows of a head, channels its columns: int4 keys have a scale per column, all else per row.
  static void move_head(const KvView& kv, const KvMove& move, bool value, int head) {
    const int tokens = kv.g.block_tokens, channels = kv.g.head_dim;
    const KvTier from = kv_tier(move.from), to = kv_tier(move.to);
    const bool by_channel = to == KvTier::int4 && !value;
    std::vector<float> line(size_t(by_channel ? tokens : channels));
    for (int outer = 0; outer < (by_channel ? channels : tokens); ++outer) {
      const auto token = [&](size_t i) { return by_channel ? int(i) : outer; };
      const auto channel = [&](size_t i) { return by_channel ? outer : int(i); };
      for (size_t i = 0; i < line.size(); ++i) line[i] = kv.load(move.from, value, head, token(i), channel(i));
      if (to != KvTier::full && to != from) round_to_tier(to, line);
      for (size_t i = 0; i < line.size(); ++i) kv.store(move.to, value, head, token(i), channel(i), line[i]);
    }
  }

  // Which of its sequence's blocks row t reads of kv head g: all, but where decode is sparse. Bounds are taken
  // from the keys as they are kept now.
  static std::vector<bool> blocks_read(const AttentionArgs& a, int t, int g) {
    const SparseDecode& sparse = a.geometry.sparse;
    const int s = a.batch.row_sequence[t], rows = a.batch.row_starts[s + 1] - a.batch.row_starts[s];
    const int bt = a.geometry.block_tokens, length = a.batch.positions[t] + 1, blocks = (length + bt - 1) / bt;
    std::vector<bool> reads(size_t(blocks), !sparse.applies(rows, length, a.window));
    if (reads[0]) return reads;
    const int recent = SparseDecode::first_recent(length, bt), group = a.heads / a.geometry.kv_heads;
    std::vector<std::pair<double, int>> scores;
    for (int b = 1; b < recent; ++b) {
      double best = -INFINITY;
      for (int h = g * group; h < (g + 1) * group; ++h) best = std::max(best, most_of(a, t, h, b));
      scores.emplace_back(best, b);
    }
    std::sort(scores.rbegin(), scores.rend());
    for (int i = 0; i < sparse.kept(length, bt) - (blocks - recent) - 1; ++i)
      reads[size_t(scores[size_t(i)].second)] = true;
    reads[0] = true;
    for (int b = recent; b < blocks; ++b) reads[size_t(b)] = true;
    return reads;
  }
  // What row t's head h could make at most of any key within the bounds of block b.
  static double most_of(const AttentionArgs& a, int t, int h, int b) {
    const int head_dim = a.geometry.head_dim, bt = a.geometry.block_tokens;
    const int32_t block = block_of(a.batch, a.kv.group, t, b * bt, bt);
    const KvView kv{a.geometry, a.kv};
    double sum = 0;
    for (int d = 0; d < head_dim; ++d) {
      float low = INFINITY, high = -INFINITY;
      for (int p = 0; p < bt; ++p) {
        const float key = kv.load(block, false, h / (a.heads / a.geometry.kv_heads), p, d);
        low = std::min(low, key), high = std::max(high, key);
      }
      const double q = a.q.row<float>(t)[h * head_dim + d];
      sum += std::max(q * low, q * high);
    }
    return sum;
  }

  void attend(const AttentionArgs& a, int t, int h) {
    const int head_dim = a.geometry.head_dim, g = h / (a.heads / a.geometry.kv_heads);
    if (is_padding(a.batch, t)) {
      std::fill_n(a.out.row<float>(t) + h * head_dim, head_dim, 0.0f);
      return;
    }
    const KvView kv{a.geometry, a.kv};
    const int position = a.batch.positions[t];
    const int first = a.window > 0 ? std::max(0, position - a.window + 1) : 0;
    const float* q = a.q.row<float>(t) + h * head_dim;
    const std::vector<bool> reads = blocks_read(a, t, g);
    const auto skipped = [&](int p) { return !reads[size_t(p / a.geometry.block_tokens)]; };
    std::vector<double> scores(size_t(position + 1 - first), -INFINITY);
    double max = -INFINITY, sum = 0;
    for (int p = first; p <= position; ++p) {
      if (skipped(p)) continue;
      const int32_t block = block_of(a.batch, a.kv.group, t, p, a.geometry.block_tokens);
      double dot = 0;
      for (int d = 0; d < head_dim; ++d) {
        dot += double(q[d]) * kv.load(block, false, g, p % a.geometry.block_tokens, d);
      }
      dot *= a.scale;
      if (a.softcap > 0) dot = a.softcap * std::tanh(dot / a.softcap);
      scores[size_t(p - first)] = dot;
      max = std::max(max, dot);
    }
    for (double& s : scores) sum += s = std::exp(s - max);
    std::vector<double> out(size_t(head_dim), 0);
    for (int p = first; p <= position; ++p) {
      if (skipped(p)) continue;
      const int32_t block = block_of(a.batch, a.kv.group, t, p, a.geometry.block_tokens);
      for (int d = 0; d < head_dim; ++d) {
        out[size_t(d)] +=
            scores[size_t(p - first)] / sum * kv.load(block, true, g, p % a.geometry.block_tokens, d);
      }
    }
    for (int d = 0; d < head_dim; ++d) a.out.row<float>(t)[h * head_dim + d] = float(out[size_t(d)]);
  }
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace sluice
