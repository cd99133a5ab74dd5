// One launch samples all rows: a cluster of up to 16 blocks takes a row, reads it once into its shared memory,
// and settles everything there (segment.h, select.h). What a row wants is looked up in device memory, so a
// recorded launch serves any mixture of wishes; rows that want little leave early.
#include "tensor/cuda/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/sampling/select.h"
#include "tensor/sampling.h"

namespace sluice::cuda {
namespace sampling_kernel {
namespace {

struct Parameters {
  const StagedRow* rows;    // of this launch's first row on
  const uint32_t* staging;  // that the rows' offsets count from
  const float* logits;
  int64_t pitch;
  int vocab;
  int warp_ids;  // ids per warp, a multiple of 128
  float softcap;
  bool aligned;
  SampleResult* results;  // pinned host memory
  int32_t* last_ids;
};

__device__ void count_history(Row& r, const StagedRow& wish, const int32_t* history, int first_id) {
  uint32_t* histogram = r.shared->histogram;
  for (int i = threadIdx.x; i < kHistogram; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < wish.history_total; i += kThreads) {
    const uint32_t at = uint32_t(history[i] - first_id);
    if (at >= kHistogram) continue;
    // Ids of the prompt mark themselves with the top bit, generated ones count.
    if (i < wish.history_prompt)
      atomicOr(&histogram[at], 0x80000000u);
    else
      atomicAdd(&histogram[at], 1u);
  }
  __syncthreads();
}

// Bias, penalties and bans of this block's ids. The mask is left to clean_and_find.
__device__ void adjust(Row& r, const StagedRow& wish, const uint32_t* staging) {
  float* x = r.x - r.warp * r.size;  // the block's
  const int begin = r.begin - r.warp * r.size, size = min(kWarps * r.size, r.vocab - begin);
  __syncthreads();
  const auto* bias_ids = reinterpret_cast<const int32_t*>(staging + wish.bias_ids);
  const auto* bias_values = reinterpret_cast<const float*>(staging + wish.bias_values);
  for (int i = threadIdx.x; i < wish.bias_count; i += kThreads) {
    const int at = bias_ids[i] - begin;
    if (at >= 0 && at < size) atomicAdd(&x[at], bias_values[i]);
  }
  if (wish.has_penalties) {
    const auto* history = reinterpret_cast<const int32_t*>(staging + wish.history);
    for (int part = 0; part < size; part += kHistogram) {
      count_history(r, wish, history, begin + part);
      for (int i = threadIdx.x; i < min(kHistogram, size - part); i += kThreads) {
        const uint32_t seen = r.shared->histogram[i];
        if (seen == 0) continue;
        const int generated = int(seen & 0x7fffffffu);
        float v = x[part + i];
        v = v > 0 ? v / wish.repetition_penalty : v * wish.repetition_penalty;
        v = __fsub_rn(v, __fmul_rn(wish.frequency_penalty, float(generated)));
        if (generated > 0) v -= wish.presence_penalty;
        x[part + i] = v;
      }
      __syncthreads();
    }
  }
  __syncthreads();
  const auto* banned = reinterpret_cast<const int32_t*>(staging + wish.banned);
  for (int i = threadIdx.x; i < wish.banned_count; i += kThreads) {
    const int at = banned[i] - begin;
    if (at >= 0 && at < size) x[at] = -FLT_MAX;
  }
  __syncthreads();
}

struct Spread {
  float max;
  double log_sum;
};

// The sum that log-probabilities are taken of, and the list of the likeliest.
__device__ double list_likeliest(Row& r, const StagedRow& wish, float max, SampleResult* result) {
  const double log_sum = double(max) + log(sum_of(r, exchange(r, mass_of(r, max, 1))));
  const int wanted = wish.top_logprobs;
  if (wanted <= 0) return log_sum;
  const Bracket b = narrow(r, {.floor = -FLT_MAX, .count = uint32_t(wanted), .from_top = true}, max, 1);
  int limit = INT32_MAX;
  if (b.low_count > kBand) limit = nth_equal(r, b.low, uint32_t(wanted) - b.high_count - 1);
  gather(r, b.low, limit, __uint_as_float(0x7f800000u));
  if (r.rank == 0 && threadIdx.x < wanted) {
    const uint64_t one = r.shared->sorted[threadIdx.x];
    result->top_ids[threadIdx.x] = composite_id(one);
    result->top_logprobs[threadIdx.x] = float(double(composite_value(one)) - log_sum);
  }
  return log_sum;
}

// Log-probability and rank of `id` in the row as the model gave it, from global memory: the copy in shared
// memory may be adjusted and cut.
__device__ void score(Row& r, const Parameters& p, const float* row, int id, double log_sum,
                      SampleResult* result) {
  if (id < 0 || id >= r.vocab) return;
  const float own = capped(row[id], p.softcap);
  uint32_t before = 0;
  for (int i = r.begin + r.lane; i < r.begin + r.count; i += 32) {
    const float x = capped(row[i], p.softcap);
    before += x > own || (x == own && i < id);
  }
  before = __reduce_add_sync(~0u, before);
  const uint32_t* said = exchange(r, before);
  uint32_t rank = 0;
  for (int e = r.lane; e < r.entries(); e += 32) rank += said[e];
  rank = __reduce_add_sync(~0u, rank);
  if (r.rank == 0 && threadIdx.x == 0) {
    result->logprob = float(double(own) - log_sum);
    result->rank = int(rank);
  }
}

// A random row's id: filters cut what they exclude off the row, then one draw along what is left. Ends known
// to the warp that the id belongs to, -1 in all others.
__device__ int draw(Row& r, const StagedRow& wish, Best best) {
  const float max = value_of(best.key), scale = wish.scale;
  float floor = -FLT_MAX;
  if (wish.has_min_p) floor = fmaxf(max - wish.min_p_depth, -FLT_MAX);
  Cut cut{floor, INT32_MAX};
  if (wish.top_k > 0) {
    cut = find_cut(r, {.floor = floor, .count = uint32_t(wish.top_k)}, max, scale);
    if (wish.top_p < 1) apply_cut(r, cut, max, scale);
  }
  if (wish.top_p < 1) cut = find_cut(r, {.floor = cut.value, .share = wish.top_p}, max, scale);
  const bool filtered = wish.top_k > 0 || wish.top_p < 1 || wish.has_min_p;
  const double own = filtered ? apply_cut(r, cut, max, scale) : mass_of(r, max, scale);
  const Place place = find_place(r, exchange(r, own), wish.uniform);
  return place.entry == r.entry() ? find_id(r, max, scale, place.left) : -1;
}

__device__ void write_id(const Parameters& p, const StagedRow& wish, SampleResult* result, int id) {
  result->id = id;
  p.last_ids[wish.slot] = id;
}

__global__ void __launch_bounds__(kThreads, 4) sample_rows(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) char memory[];
  const auto cluster = cg::this_cluster();
  let_next_start();
  cluster.barrier_arrive();  // that all blocks have begun: their memory may be written to
  Row r;
  r.shared = reinterpret_cast<Shared*>(memory);
  r.warp = int(threadIdx.x) / 32, r.lane = int(threadIdx.x) % 32;
  r.rank = int(cluster.block_rank()), r.cluster = int(cluster.num_blocks());
  r.vocab = p.vocab, r.size = p.warp_ids;
  r.begin = r.entry() * r.size;
  r.count = min(max(p.vocab - r.begin, 0), r.size);
  r.x = reinterpret_cast<float*>(memory + sizeof(Shared)) + r.warp * r.size;
  if (r.lane == 0) {
    ptx::barrier_init(&r.shared->loaded[r.warp], 1);
    ptx::barrier_init_fence();
  }
  __syncwarp();
  // The wishes were brought in before the step began: no kernel of the step writes them.
  const int row = int(blockIdx.y);
  const StagedRow& wish = p.rows[row];
  const bool idle = wish.idle, greedy = wish.greedy, logprobs = wish.wants_logprobs, adjusted = wish.adjusted;
  wait_for_previous();
  if (idle) {
    cluster.barrier_wait();
    return;
  }
  const float* logits = p.logits + row * p.pitch;
  SampleResult* result = p.results + row;
  load(r, logits, p.aligned);
  const bool only_max = greedy && !logprobs && !adjusted;
  const Best own = clean_and_find(r, p.softcap, nullptr, !only_max);
  cluster.barrier_wait();
  Best best = best_of(r, exchange(r, own));
  const bool first_thread = r.rank == 0 && threadIdx.x == 0;
  if (first_thread) {
    if (!logprobs) result->logprob = 0, result->rank = 0;
    result->top_count = logprobs ? wish.top_logprobs : 0;
  }
  if (only_max) {
    if (first_thread) write_id(p, wish, result, best.id);
    return;
  }
  double log_sum = 0;
  if (logprobs) log_sum = list_likeliest(r, wish, value_of(best.key), result);
  int id = wish.target_id;
  if (wish.slot < 0) {
    if (first_thread) result->id = id;
  } else {
    if (adjusted) {
      adjust(r, wish, p.staging);
      best =
          best_of(r, exchange(r, clean_and_find(r, 0, wish.has_mask ? p.staging + wish.mask : nullptr, true)));
    }
    id = best.id;
    if (greedy) {
      if (first_thread) write_id(p, wish, result, id);
    } else {
      id = draw(r, wish, best);
      if (id >= 0 && r.lane == 0) write_id(p, wish, result, id);
      if (logprobs) {
        const int32_t* ids = exchange(r, int32_t(id));
        for (int e = r.lane; e < r.entries(); e += 32) id = max(id, ids[e]);
        id = __reduce_max_sync(~0u, id);
      }
    }
  }
  if (logprobs) score(r, p, logits, id, log_sum, result);
}

}  // namespace
}  // namespace sampling_kernel

namespace {

using namespace sampling_kernel;

// Of one step's wishes: rows, then what they point to, brought over as one piece.
struct Staging {
  Buffer host, device;
  uint32_t words = 0;
  int rows = 0;
};

class ClusterSampler final : public Sampler {
 public:
  Status reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) override;
  void stage(int slot, std::span<const SampleRow> rows, int padded_rows, cudaStream_t copy_stream) override;
  void run(const SampleArgs& a) override;

 private:
  static constexpr uint32_t kRowWords = sizeof(StagedRow) / 4;

  StagedRow staged(const SampleRow& row, Staging& to) const;
  uint32_t append(Staging& to, const void* words, size_t count) const;

  Context context_;
  Staging slots_[kStepsInFlight];
  int vocab_ = 0, max_rows_ = 0, max_step_rows_ = 0;
  int cluster_ = 1, warp_ids_ = 128;
  uint32_t capacity_ = 0;  // words of a slot's staging
  size_t shared_bytes_ = 0;
};

Status ClusterSampler::reserve(const WorkspaceShape& shape, const Context& context, Backend& backend) {
  context_ = context;
  vocab_ = shape.vocab;
  max_rows_ = shape.max_logit_rows;
  max_step_rows_ = std::max(shape.max_tokens, shape.max_logit_rows);
  // As many blocks as leave each no more than kSlice ids, so that four fit a multiprocessor.
  constexpr int kBlockIds = 8192;
  while (cluster_ < kMaxCluster && cluster_ * kBlockIds < vocab_) cluster_ *= 2;
  const int warps = cluster_ * kWarps;
  warp_ids_ = ((vocab_ + warps - 1) / warps + 127) / 128 * 128;
  shared_bytes_ = sizeof(Shared) + size_t(kWarps) * size_t(warp_ids_) * sizeof(float);
  int most = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CHECK(shared_bytes_ <= size_t(most), "vocabulary too large for sampling on the card");
  CUDA_CHECK(
      cudaFuncSetAttribute(sample_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes_)));
  CUDA_CHECK(cudaFuncSetAttribute(sample_rows, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));

  const uint64_t mask_words = (uint64_t(vocab_) + 31) / 32;
  const uint64_t sequences = uint64_t(std::max(shape.max_sequences, 1));
  const uint64_t history_words =
      std::min<uint64_t>(sequences * uint64_t(std::max(shape.max_context, 1)), kMaxHistoryWords);
  capacity_ =
      uint32_t(uint64_t(max_step_rows_) * kRowWords + sequences * (mask_words + kListWords) + history_words);
  for (Staging& s : slots_) {
    s.host = backend.alloc_host(size_t(capacity_) * 4);
    s.device = backend.alloc(size_t(capacity_) * 4);
    if (!s.host.data() || !s.device.data())
      return Error{ErrorCode::kResourceExhausted, std::string("sampling's staging, ") +
                                                      (s.host.data() ? "on the card" : "pinned on the host")};
  }
  return {};
}

uint32_t ClusterSampler::append(Staging& to, const void* words, size_t count) const {
  CHECK(to.words + count <= capacity_, "biases, bans, masks and histories of a step exceed what was reserved");
  const uint32_t at = to.words;
  if (count > 0) std::memcpy(to.host.as<uint32_t>() + at, words, count * 4);
  to.words += uint32_t(count);
  return at;
}

StagedRow ClusterSampler::staged(const SampleRow& row, Staging& to) const {
  StagedRow s;
  s.slot = row.slot;
  s.target_id = row.target_id;
  s.wants_logprobs = sampling::wants_logprobs(row);
  s.idle = row.slot < 0 && !s.wants_logprobs;
  s.top_logprobs = std::max(0, std::min({row.top_logprobs, kMaxTopLogprobs, vocab_}));
  s.greedy = !(row.temperature >= sampling::kGreedyTemperature);
  if (row.slot < 0) return s;
  if (!s.greedy) {
    s.scale = 1 / row.temperature;
    s.uniform = sampling::uniform(row.seed, row.counter);
    s.top_k = row.top_k > 0 && row.top_k < vocab_ ? row.top_k : 0;
    s.top_p = row.top_p;
    s.has_min_p = row.min_p > 0;
    if (s.has_min_p) {
      const float depth = -std::log(std::min(row.min_p, 1.0f));
      s.min_p_depth = depth > 200 ? std::numeric_limits<float>::infinity() : depth / s.scale;
    }
  }
  s.adjusted = sampling::is_adjusted(row);
  if (!s.adjusted) return s;
  s.bias_count = row.bias_count;
  s.bias_ids = append(to, row.bias_ids, size_t(row.bias_count));
  s.bias_values = append(to, row.bias_values, size_t(row.bias_count));
  s.banned_count = row.banned_count;
  s.banned = append(to, row.banned_ids, size_t(row.banned_count));
  s.has_mask = row.mask != nullptr;
  if (row.mask) s.mask = append(to, row.mask, size_t(vocab_ + 31) / 32);
  s.has_penalties = row.history_total > 0 &&
                    (row.presence_penalty != 0 || row.frequency_penalty != 0 || row.repetition_penalty != 1);
  if (s.has_penalties) {
    s.presence_penalty = row.presence_penalty;
    s.frequency_penalty = row.frequency_penalty;
    s.repetition_penalty = row.repetition_penalty;
    s.history_prompt = row.history_prompt;
    s.history_total = row.history_total;
    s.history = append(to, row.history, size_t(row.history_total));
  }
  return s;
}

void ClusterSampler::stage(int slot, std::span<const SampleRow> rows, int padded_rows,
                           cudaStream_t copy_stream) {
  CHECK(slot >= 0 && slot < kStepsInFlight);
  Staging& to = slots_[slot];
  to.rows = std::max(padded_rows, int(rows.size()));
  CHECK(to.rows <= max_step_rows_, "more rows in a step than were reserved");
  if (to.rows == 0) return;
  to.words = uint32_t(to.rows) * kRowWords;
  auto* out = to.host.as<StagedRow>();
  for (const SampleRow& row : rows) *out++ = staged(row, to);
  for (size_t i = rows.size(); i < size_t(to.rows); ++i) *out++ = StagedRow{};
  CUDA_CHECK(cudaMemcpyAsync(to.device.data(), to.host.data(), size_t(to.words) * 4, cudaMemcpyHostToDevice,
                             copy_stream));
}

void ClusterSampler::run(const SampleArgs& a) {
  const int rows = int(a.logits.rows);
  CHECK(a.slot >= 0 && a.slot < kStepsInFlight && a.logits.cols == vocab_ && rows <= max_rows_);
  CHECK(a.first_row >= 0 && a.first_row + rows <= max_step_rows_ && a.results.size() >= size_t(rows));
  if (rows == 0) return;
  const Staging& from = slots_[a.slot];
  Parameters p{};
  p.rows = from.device.as<StagedRow>() + a.first_row;
  p.staging = from.device.as<uint32_t>();
  p.logits = a.logits.row<float>(0);
  p.pitch = a.logits.stride;
  p.vocab = vocab_;
  p.warp_ids = warp_ids_;
  p.softcap = a.softcap;
  p.aligned = vocab_ % 4 == 0 && p.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(p.logits) % 16 == 0;
  p.results = a.results.data();
  p.last_ids = a.last_ids;
  launch_clusters(context_, sample_rows, unsigned(cluster_), dim3(unsigned(cluster_), unsigned(rows)),
                  dim3(kThreads), shared_bytes_, p);
}

}  // namespace

std::unique_ptr<Sampler> make_sampler() { return std::make_unique<ClusterSampler>(); }

}  // namespace sluice::cuda
