// Two launches in a layer: scores of all candidates, spread over the card, bound by the bytes of their bounds;
// then a CTA for each sequence and kv head finds the score that as many reach as are wanted.
//
// That score is found by counting, two bits at a time: all counts of a CTA meet in one barrier a time.
// (A radix sort's histograms would have most scores of a context meet in a few of their bins.)
#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "tensor/cuda/attention/sparse.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_layout.h"

namespace sluice::cuda {
namespace {

constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / 32;
constexpr int kAtOnce = 4;  // blocks whose bounds a warp loads before it uses the first
constexpr int kChooseThreads = 512, kChooseWarps = kChooseThreads / 32;
constexpr unsigned kAll = ~0u;

// Of 8 channels.
struct alignas(16) Piece {
  __nv_bfloat162 pairs[4];
};
__device__ __forceinline__ Piece load_piece(const Piece* from) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Piece*>(&v);
}
__device__ __forceinline__ void store_piece(Piece* to, const Piece& piece) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&piece);
}

struct SparseJob {
  const __nv_bfloat16* q;
  int64_t q_stride;  // elements
  std::byte* pool;
  int64_t quarter_bytes;  // of a slot
  int64_t keys, bounds;   // of the layer: from a full block's start; from the end of any block backwards
  const int32_t *row_starts, *kv_lengths, *positions, *row_sequence, *table;
  int table_stride, tokens;
  int kv_heads, group, head_dim, block_tokens;
  SparseDecode sparse;
  SparseChoice choice;

  // [lowest, highest][D] of a head.
  __device__ Piece* bounds_of(KvRef ref, int head) const {
    const int64_t end = (kv_first_unit(ref) + kv_units(kv_tier(ref))) * quarter_bytes;
    return reinterpret_cast<Piece*>(pool + end - bounds) + head * head_dim / 4;
  }
  // [tokens][D] of a head of a block in full.
  __device__ const Piece* keys_of(KvRef ref, int head) const {
    return reinterpret_cast<const Piece*>(pool + kv_first_unit(ref) * quarter_bytes + keys +
                                          int64_t(head) * block_tokens * head_dim * 2);
  }
  __device__ const int32_t* table_of(int sequence) const { return table + int64_t(sequence) * table_stride; }
  __device__ int64_t choice_of(int sequence, int head) const {
    return (int64_t(sequence) * kv_heads + head) * choice.stride;
  }
};

// What of a context is always read, and how much of the rest.
struct Wanted {
  int blocks, recent;      // of the context; the first of those that are always read but for block 0
  int candidates, wanted;  // blocks 1 .. candidates; so many of them
  bool all;

  __device__ Wanted(const SparseJob& job, int length) {
    const int bt = job.block_tokens;
    blocks = (length + bt - 1) / bt;
    recent = SparseDecode::first_recent(length, bt);
    const int kept = job.sparse.kept(length, bt);
    all = !job.sparse.applies(1, length, 0) || kept == blocks;
    candidates = recent - 1;
    wanted = kept - (blocks - recent) - 1;
  }
};

// A warp's: the lowest and highest key per channel of a whole block.
__device__ void bound_block(const SparseJob& job, KvRef ref, int head) {
  const int pieces = job.head_dim / 8;
  const Piece* keys = job.keys_of(ref, head);
  Piece* to = job.bounds_of(ref, head);
  for (int p = int(threadIdx.x) % 32; p < pieces; p += 32) {
    Piece low = load_piece(keys + p), high = low;
#pragma unroll 4
    for (int token = 1; token < job.block_tokens; ++token) {
      const Piece key = load_piece(keys + token * pieces + p);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low.pairs[i] = __hmin2(low.pairs[i], key.pairs[i]);
        high.pairs[i] = __hmax2(high.pairs[i], key.pairs[i]);
      }
    }
    store_piece(to + p, low);
    store_piece(to + pieces + p, high);
  }
}

// Grid: [rows, a warp each; kv heads]. Rows that end no block have nothing to do, nor have single ones.
__global__ void __launch_bounds__(kScoreThreads) bound_kernel(const __grid_constant__ SparseJob job) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.x) * kScoreWarps + int(threadIdx.x) / 32;
  if (row >= job.tokens) return;
  const int end = job.positions[row] + 1, s = job.row_sequence[row];
  if (end % job.block_tokens != 0 || job.row_starts[s + 1] - job.row_starts[s] == 1) return;
  bound_block(job, job.table_of(s)[end / job.block_tokens - 1], int(blockIdx.y));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(kAll, x, other);
  return x;
}

// Grid: [parts of the candidates, kv heads, sequences]. `pieces`: of 8 channels, that a lane has of a block's
// bounds.
template <int pieces>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(const __grid_constant__ SparseJob job) {
  extern __shared__ __align__(16) float queries[];  // [group][2 * D]: what is below 0, what is above
  let_next_start();
  wait_for_previous();
  const int s = int(blockIdx.z), head = int(blockIdx.y), row = job.row_starts[s];
  const int length = job.kv_lengths[s], lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  if (job.row_starts[s + 1] - row != 1 || length == 0) return;
  const int32_t* table = job.table_of(s);
  if (blockIdx.x == 0 && warp == 0 && length % job.block_tokens == 0)
    bound_block(job, table[length / job.block_tokens - 1], head);
  const Wanted wanted(job, length);
  const int step = int(gridDim.x) * kScoreWarps * kAtOnce;
  if (wanted.all || int(blockIdx.x) * kScoreWarps * kAtOnce >= wanted.candidates) return;

  const int width = job.head_dim;
  const __nv_bfloat16* q = job.q + row * job.q_stride + int64_t(head) * job.group * width;
  for (int i = int(threadIdx.x); i < job.group * width; i += kScoreThreads) {
    const float x = __bfloat162float(q[i]);
    queries[i / width * 2 * width + i % width] = fminf(x, 0);
    queries[i / width * 2 * width + width + i % width] = fmaxf(x, 0);
  }
  __syncthreads();
  float* scores = job.choice.scores + job.choice_of(s, head);
  for (int first = 1 + (int(blockIdx.x) * kScoreWarps + warp) * kAtOnce; first <= wanted.candidates;
       first += step) {
    const int count = min(kAtOnce, wanted.candidates + 1 - first);
    const KvRef refs = lane < count ? table[first + lane] : 0;
    Piece bounds[kAtOnce][pieces];
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      const Piece* from = job.bounds_of(__shfl_sync(kAll, refs, b), head);
#pragma unroll
      for (int p = 0; p < pieces; ++p)
        bounds[b][p] = b < count && lane + p * 32 < width / 4 ? load_piece(from + lane + p * 32) : Piece{};
    }
    float best[kAtOnce];
#pragma unroll
    for (float& x : best) x = -INFINITY;
    for (int h = 0; h < job.group; ++h) {
      float sums[kAtOnce] = {};
#pragma unroll
      for (int p = 0; p < pieces; ++p) {
        if (lane + p * 32 >= width / 4) continue;
        const float4* mine = reinterpret_cast<const float4*>(queries + h * 2 * width) + (lane + p * 32) * 2;
        const float4 a = mine[0], c = mine[1];
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
          const float2 x = __bfloat1622float2(bounds[b][p].pairs[0]),
                       y = __bfloat1622float2(bounds[b][p].pairs[1]),
                       z = __bfloat1622float2(bounds[b][p].pairs[2]),
                       w = __bfloat1622float2(bounds[b][p].pairs[3]);
          sums[b] +=
              a.x * x.x + a.y * x.y + a.z * y.x + a.w * y.y + c.x * z.x + c.y * z.y + c.z * w.x + c.w * w.y;
        }
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) best[b] = fmaxf(best[b], warp_sum(sums[b]));
    }
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b)
      if (lane == b && b < count) scores[first + b] = best[b];
  }
}

// In the order of the numbers.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Sums over the CTA of three numbers a thread. `sums` is of the caller's turn: another one the next time.
__device__ __forceinline__ void add_up(int (&n)[3], int (&sums)[kChooseWarps][3]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int& x : n) x = __reduce_add_sync(kAll, x);
  if (lane < 3) sums[warp][lane] = lane == 0 ? n[0] : lane == 1 ? n[1] : n[2];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 3; ++i) n[i] = __reduce_add_sync(kAll, lane < kChooseWarps ? sums[lane][i] : 0);
}

// What separates the chosen: keys above `key` are, and of those equal to it all but the first `skipped`.
struct Threshold {
  uint32_t key;
  int skipped;
};

// The bits that all keys have in common are left out, and it ends once as many as are wanted reach the bits
// found so far: about log2(count) bits decide, of 32.
__device__ Threshold find_threshold(const uint32_t* keys, int count, int wanted, uint32_t common,
                                    uint32_t alike) {
  __shared__ int sums[2][kChooseWarps][3];
  const int first = 30 - __clz(int(~alike)) / 2 * 2;  // of the two bits where keys first differ
  uint32_t key = first >= 30 ? 0 : common & ~0u << (first + 2);
  int turn = 0;
  for (int shift = first; shift >= 0; shift -= 2, turn ^= 1) {
    int n[3] = {};
#pragma unroll 4
    for (int i = int(threadIdx.x); i < count; i += kChooseThreads) {
      const uint32_t x = keys[i];
#pragma unroll
      for (uint32_t j = 0; j < 3; ++j) n[j] += x >= (key | (j + 1) << shift);
    }
    add_up(n, sums[turn]);
    const uint32_t digit = n[2] >= wanted ? 3 : n[1] >= wanted ? 2 : n[0] >= wanted ? 1 : 0;
    key |= digit << shift;
    if (digit > 0 && n[digit - 1] == wanted) return {key - 1, count};
  }
  int n[3] = {};
  for (int i = int(threadIdx.x); i < count; i += kChooseThreads) {
    n[0] += keys[i] > key;
    n[1] += keys[i] == key;
  }
  add_up(n, sums[turn]);
  return {key, n[1] - (wanted - n[0])};
}

// Sums over the threads before this one.
__device__ int2 sums_before(int2 value) {
  __shared__ int2 totals[kChooseWarps];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  int2 inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(kAll, inclusive.x, step), y = __shfl_up_sync(kAll, inclusive.y, step);
    if (lane >= step) inclusive.x += x, inclusive.y += y;
  }
  if (lane == 31) totals[warp] = inclusive;
  __syncthreads();
  int2 before = {inclusive.x - value.x, inclusive.y - value.y};
  for (int w = 0; w < warp; ++w) before.x += totals[w].x, before.y += totals[w].y;
  return before;
}

// The bits in which all of the CTA's keys are alike; and a key.
__device__ uint32_t bits_alike(uint32_t ones, uint32_t zeros) {
  __shared__ uint32_t both[kChooseWarps][2];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  ones = __reduce_and_sync(kAll, ones), zeros = __reduce_and_sync(kAll, zeros);
  if (lane == 0) both[warp][0] = ones, both[warp][1] = zeros;
  __syncthreads();  // the keys are there too
  ones = __reduce_and_sync(kAll, both[lane % kChooseWarps][0]);
  zeros = __reduce_and_sync(kAll, both[lane % kChooseWarps][1]);
  return ones | zeros;
}

// Grid: [kv heads, sequences].
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const __grid_constant__ SparseJob job) {
  extern __shared__ __align__(16) uint32_t keys[];  // [stride] of blocks 1 ..; then their references
  constexpr int kLoads = 4;                         // of each kind, under way at once
  let_next_start();
  wait_for_previous();
  const int s = int(blockIdx.y), head = int(blockIdx.x), length = job.kv_lengths[s];
  if (job.row_starts[s + 1] - job.row_starts[s] != 1 || length == 0) return;
  const Wanted w(job, length);
  const int32_t* __restrict__ table = job.table_of(s);
  KvRef* __restrict__ to = job.choice.blocks + job.choice_of(s, head);
  if (w.all) {
    for (int b = int(threadIdx.x); b < w.blocks; b += kChooseThreads) to[b] = __ldg(table + b);
    return;
  }
  if (threadIdx.x == 0) to[0] = table[0];
  for (int b = w.recent + int(threadIdx.x); b < w.blocks; b += kChooseThreads)
    to[1 + w.wanted + b - w.recent] = __ldg(table + b);
  if (w.wanted <= 0) return;
  const float* __restrict__ scores = job.choice.scores + job.choice_of(s, head) + 1;
  KvRef* refs = reinterpret_cast<KvRef*>(keys + job.choice.stride);
  uint32_t ones = ~0u, zeros = ~0u;
  for (int first = int(threadIdx.x); first < w.candidates; first += kLoads * kChooseThreads) {
    float score[kLoads];
    KvRef ref[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = min(first + i * kChooseThreads, w.candidates - 1);
      score[i] = __ldcg(scores + at), ref[i] = __ldg(table + 1 + at);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = min(first + i * kChooseThreads, w.candidates - 1);  // the last one more than once
      const uint32_t key = ordered(score[i]);
      keys[at] = key, refs[at] = ref[i];
      ones &= key, zeros &= ~key;
    }
  }
  const uint32_t alike = bits_alike(ones, zeros);
  const Threshold t = find_threshold(keys, w.candidates, w.wanted, keys[0], alike);
  // Each thread has candidates that follow each other.
  const int each = (w.candidates + kChooseThreads - 1) / kChooseThreads;
  const int from = min(w.candidates, int(threadIdx.x) * each), end = min(w.candidates, from + each);
  int2 count = {};
  for (int i = from; i < end; ++i) count.x += keys[i] > t.key, count.y += keys[i] == t.key;
  int2 before = sums_before(count);
  for (int i = from; i < end; ++i) {
    const bool above = keys[i] > t.key, equal = keys[i] == t.key;
    if (above || (equal && before.y >= t.skipped)) to[1 + before.x + max(0, before.y - t.skipped)] = refs[i];
    before.x += above, before.y += equal;
  }
}

SparseJob job_of(const AttentionArgs& a, const SparseChoice& choice) {
  const KvGeometry& g = a.geometry;
  const KvRows rows(g);
  SparseJob job{};
  job.q = static_cast<const __nv_bfloat16*>(a.q.data);
  job.q_stride = a.q.stride;
  job.pool = a.kv.pool;
  job.quarter_bytes = int64_t(a.kv.block_bytes) / kSlotUnits;
  job.keys = rows.layer_row(a.kv.layer_in_group) * g.head_dim * 2;
  job.bounds = int64_t(bounds_bytes(g)) / g.layers_per_group * (g.layers_per_group - a.kv.layer_in_group);
  job.row_starts = a.batch.row_starts;
  job.kv_lengths = a.batch.kv_lengths;
  job.positions = a.batch.positions;
  job.row_sequence = a.batch.row_sequence;
  job.table = a.batch.tables[a.kv.group];
  job.table_stride = a.batch.table_stride;
  job.tokens = a.batch.tokens;
  job.kv_heads = g.kv_heads;
  job.group = a.heads / g.kv_heads;
  job.head_dim = g.head_dim;
  job.block_tokens = g.block_tokens;
  job.sparse = g.sparse;
  job.choice = choice;
  return job;
}

size_t query_bytes(const KvGeometry& g, int heads) {
  return size_t(heads / g.kv_heads) * 2 * size_t(g.head_dim) * sizeof(float);
}

}  // namespace

void sparse_prepare(const KvGeometry& g, int heads, int stride) {
  CHECK(g.head_dim % 8 == 0 && g.head_dim <= 256 && stride <= kMostSparseBlocks);
  for (const auto& [kernel, bytes] :
       {std::pair{reinterpret_cast<const void*>(score_kernel<1>), query_bytes(g, heads)},
        {reinterpret_cast<const void*>(score_kernel<2>), query_bytes(g, heads)},
        {reinterpret_cast<const void*>(choose_kernel), size_t(stride) * 8}})
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
}

void bound_prompts(const Context& context, const AttentionArgs& a) {
  const unsigned groups = unsigned((a.batch.tokens + kScoreWarps - 1) / kScoreWarps);
  launch(context, bound_kernel, dim3(groups, unsigned(a.geometry.kv_heads)), dim3(kScoreThreads), 0,
         job_of(a, {}));
}

void choose_blocks(const Context& context, const AttentionArgs& a, const SparseChoice& choice) {
  constexpr int kCtasPerMultiprocessor = 4;
  const KvGeometry& g = a.geometry;
  const int heads = g.kv_heads * a.batch.sequences;
  const int useful = (choice.stride + kScoreWarps * kAtOnce - 1) / (kScoreWarps * kAtOnce);
  const int parts = std::clamp(kCtasPerMultiprocessor * context.multiprocessors / heads, 1, useful);
  const SparseJob job = job_of(a, choice);
  const dim3 grid(unsigned(parts), unsigned(g.kv_heads), unsigned(a.batch.sequences));
  launch(context, g.head_dim <= 128 ? score_kernel<1> : score_kernel<2>, grid, dim3(kScoreThreads),
         query_bytes(g, a.heads), job);
  launch(context, choose_kernel, dim3(unsigned(g.kv_heads), unsigned(a.batch.sequences)), dim3(kChooseThreads),
         size_t(choice.stride) * 8, job);
}

}  // namespace sluice::cuda
