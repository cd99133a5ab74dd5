// The CPU behind the Backend interface: glue between the ops and the team, and the scratch they need.
//
// Rows are shared out in ranges; a step of few rows whose op takes less than waking the team runs on the caller
// alone. Every row's arithmetic is the same on whichever thread and beside whichever rows (backend.h,
// "Numbers").
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/usable_cores.h"
#include "tensor/backend.h"
#include "tensor/cpu/attention/attention.h"
#include "tensor/cpu/host_memory.h"
#include "tensor/cpu/isa.h"
#include "tensor/cpu/linear/linear.h"
#include "tensor/cpu/rows/angles.h"
#include "tensor/cpu/rows/row_kernels.h"
#include "tensor/cpu/team.h"
#include "tensor/sampling.h"

namespace sluice {
namespace cpu {
namespace {

constexpr int kMaxThreads = 1024;
constexpr double kAloneNs = 3000;  // work below this is done sooner by one thread than by a woken team
constexpr double kRangeNs = 1000;  // and no piece of it is made shorter than this
constexpr int kMaxSamplers =
    16;  // threads that choose ids at once; each needs 16 bytes of scratch per vocabulary entry

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Isa isa)
      : isa_(isa), team_(threads), kernels_(row_kernels(isa)), attention_(team_, isa) {}

  DeviceInfo info() const override {
    return {cpu_name(), isa_name(isa_), team_.size(), available_memory_bytes()};
  }
  Status check(const DeviceNeeds& needs) const override {
    if (needs.block_tokens % kPageTokens == 0) return {};
    return Error{ErrorCode::kInvalidArgument,
                 "must be a multiple of 16 (the CPU's kernels work on pages of 16 tokens)",
                 "engine.block_tokens"};
  }
  Buffer alloc(size_t bytes) override {
    void* p = allocate_zeroed(bytes);
    CHECK(p != nullptr || !reserved_, "out of memory");
    return p ? Buffer(this, p, bytes) : Buffer();
  }
  void free(void* data, size_t bytes) override { release(data, bytes); }
  void copy_in(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void copy_out(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  Status reserve(const WorkspaceShape& shape) override;

  DType activation_dtype() const override { return DType::f32; }
  DType kv_dtype() const override { return DType::f16; }
  size_t kv_block_bytes(const KvGeometry& g) const override { return PageLayout(g).block_bytes(); }

  Result<Weight> pack(std::span<const PackSource> sources) override {
    return pack_weight(*this, team_, isa_, sources);
  }
  WeightFormat kept_format(const WeightFormat& f, int64_t, int64_t) const override {
    return f.element == WeightElement::fp8 ? WeightFormat{WeightElement::bf16} : f;
  }

  void begin_step(const BatchInput&, const KvGeometry&, int) override {
    attention_.begin_step();
    angles_.begin_step();
  }
  void embed(const EmbedArgs& a) override;
  void rms_norm(const RmsNormArgs& a) override;
  void add_rms_norm(const AddRmsNormArgs& a) override;
  void linear(const LinearArgs& a) override { cpu::linear(team_, isa_, a, linear_scratch_.as<std::byte>()); }
  void rope_store_kv(const RopeStoreArgs& a) override;
  void attention(const AttentionArgs& a) override { attention_.run(a); }
  void act_mul(const ActMulArgs& a) override;
  void gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) override;
  void sample(const SampleArgs& a) override;
  void copy_blocks(std::byte* pool, size_t bytes,
                   std::span<const std::pair<int32_t, int32_t>> from_to) override;
  bool has_kv_tier(KvTier tier) const override { return tier != KvTier::fp8; }
  bool has_sparse_decode() const override { return true; }
  void move_blocks(const MoveBlocksArgs& a) override { attention_.move_blocks(a); }
  void finish_step() override {}

 private:
  // f(i) for i in [0, n), each about `ns` long, in a few ranges of i per thread.
  template <typename F>
  void for_each(int64_t n, double ns, const F& f) {
    if (double(n) * ns < kAloneNs || n < 2) {
      for (int64_t i = 0; i < n; ++i) f(i);
      return;
    }
    const int ranges =
        int(std::min<int64_t>({n, int64_t(team_.size()) * 4, int64_t(double(n) * ns / kRangeNs) + 2}));
    team_.run_tasks(ranges, [&](int range, int) {
      const int64_t end = n * (range + 1) / ranges;
      for (int64_t i = n * range / ranges; i < end; ++i) f(i);
    });
  }

  Isa isa_;
  Team team_;
  const RowKernels& kernels_;
  Attention attention_;
  AngleTables angles_;
  bool reserved_ = false;
  Buffer linear_scratch_;
  std::vector<sampling::Scratch> samplers_;
  std::vector<sampling::SliceStats> slices_;  // [R, slices]
};

Status CpuBackend::reserve(const WorkspaceShape& s) {
  attention_.reserve(s.max_tokens, s.max_heads, s.head_dim, s.max_context);
  if (s.kv.sparse.on()) attention_.reserve_sparse(s.max_sequences, s.max_heads, s.max_context, s.kv);
  angles_.reserve(s.max_tokens, s.head_dim);
  linear_scratch_ = alloc(linear_scratch_bytes(isa_, s.max_tokens, s.max_columns));
  samplers_.resize(size_t(std::min(team_.size(), kMaxSamplers)));
  for (sampling::Scratch& scratch : samplers_) scratch.reserve(s.vocab);
  slices_.resize(size_t(s.max_tokens) * size_t(sampling::slice_count(s.vocab)));
  reserved_ = true;
  return {};
}

void CpuBackend::embed(const EmbedArgs& a) {
  const int n = int(a.out.cols);
  for_each(a.batch.tokens, 1.0 * n, [&](int64_t t) {
    int32_t id = a.batch.token_ids[t];
    if (id < 0) id = a.batch.last_ids[-1 - id];
    CHECK(id >= 0 && id < a.table.rows, "token id beyond the vocabulary");
    float* out = a.out.row<float>(t);
    unpack_row(isa_, a.table, id, out);
    if (a.scale != 1) kernels_.scale(out, a.scale, n);
  });
}

void CpuBackend::rms_norm(const RmsNormArgs& a) {
  const int n = int(a.x.cols);
  for_each(a.x.rows, 0.15 * n,
           [&](int64_t t) { kernels_.rms_norm(a.x.row<float>(t), a.weight, a.eps, n, a.out.row<float>(t)); });
}

void CpuBackend::add_rms_norm(const AddRmsNormArgs& a) {
  const int n = int(a.x.cols);
  for_each(a.x.rows, 0.3 * n, [&](int64_t t) {
    kernels_.add_rms_norm(a.residual.row<float>(t), a.x.row<float>(t), a.post_weight, a.weight, a.eps, n,
                          a.out.row<float>(t));
  });
}

void CpuBackend::rope_store_kv(const RopeStoreArgs& a) {
  const int head_dim = a.geometry.head_dim, kv_heads = a.geometry.kv_heads, half = a.rotary / 2;
  const AngleTable& angles = angles_.get(a.batch, a.inv_freq, a.rotary, a.rope_magnitude,
                                         [&](int64_t n, auto f) { for_each(n, 30.0 * half, f); });
  const PageLayout layout(a.geometry);
  const int block_tokens = a.geometry.block_tokens;
  for_each(a.batch.tokens, 0.5 * head_dim * (a.heads + 2 * kv_heads), [&](int64_t t) {
    float* row = a.qkv.row<float>(t);
    const float *cos = angles.cos(t), *sin = angles.sin(t);
    for (int h = 0; h < a.heads + kv_heads; ++h) {
      float* x = row + int64_t(h) * head_dim;
      const float* norm = h < a.heads ? a.q_norm : a.k_norm;
      if (norm) kernels_.rms_norm(x, norm, a.norm_eps, head_dim, x);
      kernels_.rotate(x, cos, sin, half);
    }
    const int position = a.batch.positions[t];
    const int32_t* table = a.batch.tables[a.kv.group] + int64_t(a.batch.row_sequence[t]) * a.batch.table_stride;
    const int32_t block = table[position / block_tokens];
    CHECK(block >= 0, "a token has no block to be stored in");
    const int page = position % block_tokens / kPageTokens, slot = position % kPageTokens;
    const float* k = row + int64_t(a.heads) * head_dim;
    const float* v = k + int64_t(kv_heads) * head_dim;
    for (int g = 0; g < kv_heads; ++g) {
      uint16_t* keys = layout.keys(a.kv, block, page, g);
      kernels_.store_kv(k + int64_t(g) * head_dim, v + int64_t(g) * head_dim, head_dim, keys + slot,
                        layout.values(keys) + slot * layout.strip.padded());
    }
  });
}

void CpuBackend::act_mul(const ActMulArgs& a) {
  // Cut along the columns too, so that one wide row still uses the team.
  constexpr int kPiece = 1024;
  const int64_t width = a.out.cols, pieces = (width + kPiece - 1) / kPiece;
  for_each(a.out.rows * pieces, 0.5 * double(std::min<int64_t>(width, kPiece)), [&](int64_t i) {
    const int64_t t = i / pieces, begin = i % pieces * kPiece;
    const float* gate = a.gate_up.row<float>(t) + begin;
    kernels_.act_mul(gate, gate + width, int(std::min<int64_t>(kPiece, width - begin)), a.activation,
                     a.out.row<float>(t) + begin);
  });
}

void CpuBackend::gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) {
  for_each(out.rows, 0.1 * double(out.cols), [&](int64_t i) {
    std::memcpy(out.row<float>(i), x.row<float>(index[i]), size_t(out.cols) * sizeof(float));
  });
}

void CpuBackend::sample(const SampleArgs& a) {
  using namespace sampling;
  const int vocab = int(a.logits.cols), slices = slice_count(vocab), rows = int(a.rows.size());
  CHECK(size_t(rows) * size_t(slices) <= slices_.size(), "more logits than reserved");
  for_each(int64_t(rows) * slices, 0.2 * kSlice, [&](int64_t i) {
    const int64_t r = i / slices;
    const int s = int(i % slices);
    float* logits = a.logits.row<float>(r);
    const int begin = s * kSlice;
    if (a.softcap > 0) kernels_.sampling.softcap(logits + begin, std::min(kSlice, vocab - begin), a.softcap);
    slices_[size_t(i)] = slice_stats(kernels_.sampling, logits, vocab, s, a.rows[size_t(r)]);
  });
  const auto finish = [&](int r, int sampler) {
    const std::span<const SliceStats> stats(slices_.data() + int64_t(r) * slices, size_t(slices));
    a.results[size_t(r)] = sample_row(kernels_.sampling, a.logits.row<float>(r), vocab, a.rows[size_t(r)],
                                      stats, samplers_[size_t(sampler)]);
  };
  // A greedy row is decided by its slices; what else a row may want takes tens of µs.
  const bool alone = std::all_of(a.rows.begin(), a.rows.end(), [](const SampleRow& r) {
    return r.temperature < kGreedyTemperature && !is_adjusted(r) && !wants_logprobs(r);
  });
  if (alone) {
    for (int r = 0; r < rows; ++r) finish(r, 0);
  } else {
    const int samplers = std::min(int(samplers_.size()), rows);
    team_.run_tasks(samplers, [&](int sampler, int) {
      for (int r = sampler; r < rows; r += samplers) finish(r, sampler);
    });
  }
  for (int r = 0; r < rows; ++r) {
    if (a.rows[size_t(r)].slot >= 0) a.last_ids[a.rows[size_t(r)].slot] = a.results[size_t(r)].id;
  }
}

void CpuBackend::copy_blocks(std::byte* pool, size_t bytes,
                             std::span<const std::pair<int32_t, int32_t>> from_to) {
  for (auto [from, to] : from_to) std::memcpy(pool + size_t(to) * bytes, pool + size_t(from) * bytes, bytes);
}

}  // namespace
}  // namespace cpu

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  if (options.threads < 0 || options.threads > cpu::kMaxThreads) {
    return Error{ErrorCode::kInvalidArgument, "threads must be between 0 (one per core) and 1024", "threads"};
  }
  const Result<cpu::Isa> isa = cpu::choose_isa(options.instruction_set.c_str());
  if (!isa) return isa.error();
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(threads, *isa));
}

}  // namespace sluice
