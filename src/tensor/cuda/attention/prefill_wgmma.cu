// Prefill attention for Hopper, after FlashAttention-3 (Shah et al., 2024): one warp brings tiles, two
// warpgroups of 64 query rows each multiply.
//
// - Producer warp: for every task (plan item, query head) the tile of queries, then key and value tiles of
//   kTokens tokens from the last to the first, each as boxes of one block x 64 columns, into rings of their
//   own. A box of a block that is not there (behind the end, -1 in the table) is asked for outside of the pool,
//   so it arrives as zeros and no row of shared memory is ever stale.
// - Consumers: scores of the next tile are started before the values of this one are weighted, so that the
//   softmax of one overlaps the products of the other; and the two warpgroups take turns in starting products,
//   so that one's softmax runs while the tensor cores work for the other.
// - Masks touch only tiles that the diagonal or the window's edge cross; tiles outside are never loaded.
//
// Slots of the last block that no token has reached yet hold anything, NaN included. Scores there are masked by
// selection; their value rows are set to zero in shared memory, since 0 * NaN is NaN.
#include "base/check.h"
#include "tensor/cuda/attention/prefill_softmax.h"
#include "tensor/cuda/attention/prefill_tasks.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"

namespace sluice::cuda {
namespace prefill {
namespace {

constexpr int kThreads = (1 + kGroups) * kGroupThreads;
constexpr float kLog2e = 1.4426950408889634f;

// Queries as wgmma takes them: this warp's 16 rows in registers (a fifth less reads of shared memory, 3 %
// faster), or where these are short, the group's rows in shared memory.
template <class S, bool in_registers = S::kQueriesInRegisters>
struct Queries {
  uint32_t rows[S::kColumns / 16][4];

  __device__ __forceinline__ void load(const __nv_bfloat16* tile, int, int warp_row) {
    const int row = warp_row + threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < S::kColumns / 16; ++i) {
      const int chunk = 2 * i + threadIdx.x % 32 / 16;
      ptx::load_matrices(tile + (chunk / 8 * kTileRows + row) * kPanel + (chunk % 8 ^ row % 8) * 8, rows[i]);
    }
  }
  __device__ __forceinline__ void multiply(float (&scores)[S::kScores], int i, uint64_t keys) const {
    ptx::wgmma_registers<false>(scores, rows[i], keys, i > 0);
  }
};
template <class S>
struct Queries<S, false> {
  uint64_t rows;

  __device__ __forceinline__ void load(const __nv_bfloat16* tile, int group_row, int) {
    rows = ptx::swizzled_factor(ptx::shared_address(tile + group_row * kPanel));
  }
  __device__ __forceinline__ void multiply(float (&scores)[S::kScores], int i, uint64_t keys) const {
    ptx::wgmma_rows(scores, rows + i / 4 * (kTileRows * kPanel * 2 >> 4) + i % 4 * ptx::kPieceStep, keys,
                    i > 0);
  }
};

// scores[64, kTokens] = queries · keysᵀ, not waited for.
template <class S>
__device__ __forceinline__ void start_scores(float (&scores)[S::kScores], const Queries<S>& queries,
                                             const __nv_bfloat16* keys) {
  const uint64_t k = ptx::swizzled_factor(ptx::shared_address(keys));
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kColumns / 16; ++i) {
    queries.multiply(scores, i, k + i / 4 * (S::kTokens * kPanel * 2 >> 4) + i % 4 * ptx::kPieceStep);
  }
  ptx::wgmma_commit();
}

// outputs[64, D] += weights · values, not waited for.
template <class S>
__device__ __forceinline__ void start_outputs(float (&outputs)[S::kOutputs],
                                              const uint32_t (&weights)[S::kTokens / 16][4],
                                              const __nv_bfloat16* values) {
  const uint64_t v = ptx::swizzled_columns(values, S::kTokens * kPanel * 2);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kTokens / 16; ++i)
    ptx::wgmma_registers(outputs, weights[i], v + i * ptx::kTokenStep, true);
  ptx::wgmma_commit();
}

// The warp's 16 rows, through its part of the query tile, which nobody reads any more, so that stores are whole
// rows.
template <class S>
__device__ __forceinline__ void store_rows(const Parameters& p, const Task& task,
                                           const float (&outputs)[S::kOutputs], const float (&factor)[2],
                                           __nv_bfloat16* queries, int warp_row) {
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* mine =
      queries + warp_row * kPanel;  // 16 rows of each panel; chunk c of row r lies at c ^ r % 8
  const auto chunk = [&](int row, int c) {
    return mine + (c / 8 * kTileRows + row) * kPanel + (c % 8 ^ row % 8) * 8;
  };
#pragma unroll
  for (int j = 0; j < S::kOutputs / 8; ++j) {
    const float* o = &outputs[8 * j];
    ptx::store_matrices(chunk(lane % 16, 2 * j + lane / 16), bf16_pair(o[0] * factor[0], o[1] * factor[0]),
                        bf16_pair(o[2] * factor[1], o[3] * factor[1]),
                        bf16_pair(o[4] * factor[0], o[5] * factor[0]),
                        bf16_pair(o[6] * factor[1], o[7] * factor[1]));
  }
  __syncwarp();
  constexpr int kChunks = S::kColumns / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / kChunks, c = (i * 32 + lane) % kChunks;
    const uint4 bits = *reinterpret_cast<const uint4*>(chunk(row, c));
    if (warp_row + row >= task.rows) continue;
    __nv_bfloat16* to =
        p.out + (task.row_begin + warp_row + row) * p.out_stride + task.head * S::kColumns + c * 8;
    *reinterpret_cast<uint4*>(to) = bits;
  }
}

// One warpgroup's work: its 64 rows of every task. The tiles of all tasks are one stream. Each takes a turn at
// the tensor cores: scores of this tile, then outputs of the one before, which may be the last of the task
// before (so that short tasks overlap, too).
//
// The tensor cores' queue is short: scores are nearly done when the last product has been enqueued. So the
// softmax does not overlap this turn's products but those of the other group's turn. (Waiting for the outputs
// only after the softmax gained nothing, and made the weights' conversion wait until then.)
template <class S, bool capped>
struct Consumer {
  const Parameters& p;
  Shared<S>& shared;
  const int group, warp_row, lane = threadIdx.x % 32;
  // How many tasks and key tiles have been taken; stages and parities follow from these (registers are short).
  // Values are always one tile behind.
  uint32_t tasks = 0, tiles = 0;
  // Of the task whose scores come next: position of its first row, counted from its first tile, and how many
  // tiles have not been started.
  int position = 0, left = 0;

  __device__ Consumer(const Parameters& parameters, Shared<S>& s, int g)
      : p(parameters), shared(s), group(g), warp_row(g * kGroupRows + threadIdx.x % kGroupThreads / 32 * 16) {}

  __device__ __forceinline__ bool next_task() {
    ptx::barrier_wait(&shared.planned[tasks % kPlanned], tasks / kPlanned & 1);
    const Task& task = shared.tasks[tasks % kPlanned];
    if (task.rows == 0) return false;
    position = task.position - task.first;
    left = task.tiles;
    ++tasks;
    return true;
  }

  // Whose turn it is to enqueue products: named barriers, one a group.
  __device__ __forceinline__ void take_turn() const { ptx::named_sync(1 + group, kGroups * kGroupThreads); }
  __device__ __forceinline__ void give_turn() const {
    ptx::named_arrive(1 + (group + 1) % kGroups, kGroups * kGroupThreads);
  }

  __device__ __forceinline__ void await_keys() const {
    ptx::barrier_wait(&shared.key_full[tiles % S::kStages], tiles / S::kStages & 1);
  }
  __device__ __forceinline__ void await_values() const {
    ptx::barrier_wait(&shared.value_full[(tiles - 1) % S::kStages], (tiles - 1) / S::kStages & 1);
  }
  __device__ __forceinline__ const __nv_bfloat16* keys() const { return shared.keys[tiles % S::kStages]; }
  __device__ __forceinline__ __nv_bfloat16* values() const { return shared.values[(tiles - 1) % S::kStages]; }
  __device__ __forceinline__ void release_keys() const { release(&shared.key_empty[tiles % S::kStages]); }
  __device__ __forceinline__ void release_values() const {
    release(&shared.value_empty[(tiles - 1) % S::kStages]);
  }
  __device__ __forceinline__ void release(uint64_t* empty) const {  // to all who write into the tile
    if constexpr (S::kPair > 1) {
      if (lane < S::kPair) ptx::barrier_arrive_in(empty, uint32_t(lane));
    } else {
      if (lane == 0) ptx::barrier_arrive(empty);
    }
  }

  __device__ __forceinline__ void load_queries(Queries<S>& queries) const {
    const uint32_t n = tasks - 1;
    ptx::barrier_wait(&shared.query_full[n % S::kQueryTiles], n / S::kQueryTiles & 1);
    queries.load(shared.queries[n % S::kQueryTiles], group * kGroupRows, warp_row);
  }

  // The tile's scores as the softmax takes them: capped, and -inf where a row does not see the token.
  __device__ __forceinline__ void mask(float (&scores)[S::kScores]) const {
    if constexpr (capped) cap_scores(scores, p.cap_scale);
    const int tile = left * S::kTokens;
    const int first = position + group * kGroupRows;  // of the group's rows; so the branches are uniform
    const int mine = position + warp_row + lane / 4;
    if (tile + S::kTokens - 1 > first) mask_scores<true>(scores, mine, tile);
    if (tile < first + kGroupRows - p.window) mask_scores<false>(scores, mine - p.window + 1, tile);
  }

  // Value rows that no token has filled: every group clears them for itself (the same zeros; cheaper than
  // making the two meet).
  __device__ __forceinline__ void clear_stale() const {
    const Task& task = shared.tasks[(tasks - 1) % kPlanned];
    if (task.stale >= task.stale_end) return;
    await_values();
    const int chunks = (task.stale_end - task.stale) * S::kPanels * 8;
    for (int i = threadIdx.x % kGroupThreads; i < chunks; i += kGroupThreads) {
      const int panel = i / 8 % S::kPanels, row = task.stale + i / 8 / S::kPanels;
      *reinterpret_cast<uint4*>(values() + (panel * S::kTokens + row) * kPanel + i % 8 * 8) = uint4{};
    }
    ptx::async_proxy_fence();
    ptx::named_sync(1 + kGroups + group, kGroupThreads);
  }

  __device__ __forceinline__ void finish(uint32_t task, float (&outputs)[S::kOutputs], Softmax& softmax) const {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[r] = sum > 0 ? __fdividef(1, sum) : 0;
    }
    store_rows<S>(p, shared.tasks[task % kPlanned], outputs, factor, shared.queries[task % S::kQueryTiles],
                  warp_row);
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&shared.query_empty[task % S::kQueryTiles]);
      ptx::barrier_arrive(&shared.forgotten[task % kPlanned]);
    }
    softmax = {};
#pragma unroll
    for (int i = 0; i < S::kOutputs; ++i) outputs[i] = 0;
  }

  __device__ __forceinline__ void first_scores(float (&scores)[S::kScores], const Queries<S>& queries) {
    await_keys();
    take_turn();
    start_scores<S>(scores, queries, keys());
    give_turn();
    ptx::wgmma_wait_for<0>(scores);
    release_keys();
    ++tiles;
  }
  __device__ __forceinline__ void last_outputs(float (&outputs)[S::kOutputs],
                                               const uint32_t (&weights)[S::kTokens / 16][4]) const {
    await_values();
    start_outputs<S>(outputs, weights, values());
    ptx::wgmma_wait_for<0>(outputs);
    release_values();
  }
  __device__ __forceinline__ void products(float (&scores)[S::kScores], const Queries<S>& queries,
                                           float (&outputs)[S::kOutputs],
                                           const uint32_t (&weights)[S::kTokens / 16][4]) {
    await_keys();
    await_values();
    take_turn();
    start_scores<S>(scores, queries, keys());
    start_outputs<S>(outputs, weights, values());
    give_turn();
    ptx::wgmma_wait_for<1>(scores);
    release_keys();
    ptx::wgmma_wait_for<0>(outputs);
    release_values();
    ++tiles;
  }

  __device__ void run() {
    Queries<S> queries;
    Softmax softmax;
    float scores[S::kScores], outputs[S::kOutputs], correction[2];
    uint32_t weights[S::kTokens / 16][4];
    const auto to_weights = [&] {
      --left;
      mask(scores);
      if (softmax.update(scores, p.score_scale, weights, correction)) {
#pragma unroll
        for (int i = 0; i < S::kOutputs; ++i) outputs[i] *= correction[i / 2 % 2];
      }
    };
    const auto begin_task = [&] {
      load_queries(queries);
      first_scores(scores, queries);
      to_weights();
      clear_stale();
    };
#pragma unroll
    for (int i = 0; i < S::kOutputs; ++i) outputs[i] = 0;
    if (group == kGroups - 1) give_turn();  // the first group starts
    if (!next_task()) return;
    begin_task();
    if constexpr (S::kQueryTiles > 1) {
      for (;;) {
        const bool ends = left == 0;
        if (ends) {
          if (!next_task()) break;
          load_queries(queries);
        }
        products(scores, queries, outputs, weights);
        if (ends) finish(tasks - 2, outputs, softmax);
        to_weights();
        if (ends) clear_stale();
      }
      last_outputs(outputs, weights);
      finish(tasks - 1, outputs, softmax);
    } else {  // the next task's queries come only when this one's outputs have gone
      for (;;) {
        while (left > 0) {
          products(scores, queries, outputs, weights);
          to_weights();
        }
        last_outputs(outputs, weights);
        finish(tasks - 1, outputs, softmax);
        if (!next_task()) return;
        begin_task();
      }
    }
  }
};

template <class S, bool capped>
__device__ __forceinline__ void prefill_block(const CUtensorMap& pool, const CUtensorMap& queries,
                                              const Parameters& p) {
  extern __shared__ uint8_t raw[];
  Shared<S>& shared =
      *reinterpret_cast<Shared<S>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
  if (threadIdx.x == 0) shared.init_barriers();
  if constexpr (S::kPair > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  let_next_start();
  wait_for_previous();
  const int group = threadIdx.x / kGroupThreads;
  if (group == 0) {
    ptx::give_registers<40>();
    if (threadIdx.x < 32) produce<S>(p, pool, queries, shared);
    if (threadIdx.x / 32 == 1) plan<S>(p, shared);
  } else {
    ptx::take_registers<232>();
    Consumer<S, capped>(p, shared, group - 1).run();
  }
  if constexpr (S::kPair > 1) ptx::cluster_sync();  // the other may still write here
}

template <class S, bool capped>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap pool, const __grid_constant__ CUtensorMap queries,
                   const __grid_constant__ Parameters p) {
  prefill_block<S, capped>(pool, queries, p);
}
template <class S, bool capped>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(2, 1, 1)
    prefill_pair_kernel(const __grid_constant__ CUtensorMap pool, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ Parameters p) {
  prefill_block<S, capped>(pool, queries, p);
}

template <class S>
constexpr size_t shared_bytes() {
  return sizeof(Shared<S>) + 1024;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Parameters);
struct Choice {
  Kernel kernel;
  size_t shared_bytes;
  int pair;
};
// What exists. Pairs need two query heads of the same kv head.
template <int head_dim>
Choice choose(bool capped, bool paired) {
  using One = Shape<head_dim, 1>;
  using Two = Shape<head_dim, 2>;
  if (paired && !capped) return {prefill_pair_kernel<Two, false>, shared_bytes<Two>(), 2};
  return {capped ? prefill_kernel<One, true> : prefill_kernel<One, false>, shared_bytes<One>(), 1};
}
Choice choose(int head_dim, bool capped, bool paired) {
  switch (head_dim) {
    case 64:
      return choose<64>(capped, paired);
    case 128:
      return choose<128>(capped, paired);
    case 256:
      return choose<256>(capped, paired);
  }
  CHECK(false, "no wgmma prefill for this head width");
}

}  // namespace
}  // namespace prefill

bool prefill_uses_wgmma(const KvGeometry& g) {
  return (g.head_dim == 64 || g.head_dim == 128 || g.head_dim == 256) &&
         (g.block_tokens == 16 || g.block_tokens == 32 || g.block_tokens == 64);
}

int prefill_tile_rows(const KvGeometry& g) { return prefill_uses_wgmma(g) ? prefill::kTileRows : 64; }

CUtensorMap prefill_pool_map(std::byte* pool, size_t bytes, const KvGeometry& g) {
  const size_t rows = bytes / (size_t(g.head_dim) * 2);
  CHECK(rows <= INT32_MAX, "the block pool has more rows than a tensor map can name");
  return tensor_map_bf16(pool, int64_t(rows), g.head_dim, g.head_dim, g.block_tokens, prefill::kPanel, 128);
}

void prefill_wgmma_prepare(const KvGeometry& g) {
  for (const auto& [capped, paired] : {std::pair{false, false}, {true, false}, {false, true}}) {
    const prefill::Choice c = prefill::choose(g.head_dim, capped, paired);
    CUDA_CHECK(
        cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(c.shared_bytes)));
  }
}

void prefill_wgmma(const Context& context, const AttentionArgs& a, const PrefillPlan& plan,
                   const CUtensorMap& pool_map) {
  const KvRows rows(a.geometry);
  CHECK(prefill_uses_wgmma(a.geometry) && a.heads % rows.kv_heads == 0);
  CHECK(a.out.stride % 8 == 0, "rows of the output are written 16 bytes at a time");
  prefill::Parameters p{};
  p.count = plan.count;
  p.items = plan.items;
  p.positions = a.batch.positions;
  p.kv_lengths = a.batch.kv_lengths;
  p.table = a.batch.tables[a.kv.group];
  p.table_stride = a.batch.table_stride;
  p.out = static_cast<__nv_bfloat16*>(a.out.data);
  p.out_stride = a.out.stride;
  p.heads = a.heads;
  p.heads_per_kv = a.heads / rows.kv_heads;
  p.block_tokens = rows.block_tokens;
  p.block_rows = int(rows.block_rows());
  p.key_row = int(rows.layer_row(a.kv.layer_in_group));
  p.value_rows = int(rows.value_rows());
  p.window = a.window > 0 ? a.window : 1 << 30;
  p.score_scale = (a.softcap > 0 ? a.softcap : a.scale) * prefill::kLog2e;
  p.cap_scale = a.softcap > 0 ? 2 * prefill::kLog2e * a.scale / a.softcap : 0;
  const CUtensorMap queries =
      tensor_map_bf16(a.q.data, a.batch.tokens, a.q.cols, a.q.stride, prefill::kTileRows, prefill::kPanel, 128);
  const prefill::Choice c = prefill::choose(a.geometry.head_dim, a.softcap > 0, p.heads_per_kv % 2 == 0);
  const int grid = context.multiprocessors / c.pair * c.pair;
  launch(context, c.kernel, dim3(unsigned(grid)), dim3(prefill::kThreads), c.shared_bytes, pool_map, queries,
         p);
}

}  // namespace sluice::cuda
