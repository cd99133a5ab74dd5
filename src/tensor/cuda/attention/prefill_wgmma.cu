// Prefill attention for Hopper, after FlashAttention-3 (Shah et al., 2024): a producer warp brings tiles, two
// warpgroups of 64 query rows each multiply. PREFILL.md has the measured steps.
//
// - prefill_tasks.h: the planner warp resolves tasks (plan item, query head) ahead; the producer warp asks the
//   copy engine for the tile of queries, then for key and value tiles of kTokens tokens from the last to the
//   first, each as boxes of one block x 64 columns. A box of a block that is not there (behind the end, -1 in
//   the table) is asked for outside of the pool, so it arrives as zeros.
// - Two blocks with query heads of one kv head are a cluster: each brings half of every tile, to both. Without
//   that the L2's bandwidth, and its power, were the limit.
// - The two warpgroups take turns at the tensor cores: one's softmax runs while the other's products do.
// - Masks touch only tiles that the diagonal or the window's edge cross; tiles outside are never loaded.
//
// - Items in pieces (prefill_split.h): a warp leaves its rows' sums over a piece where the others do, and the
// last
//   of them adds up all (join_pieces). Nobody waits.
//
// Slots of the last block that no token has reached yet hold anything, NaN included. Scores there are masked by
// selection; their value rows are set to zero in shared memory, since 0 * NaN is NaN.
#include "base/check.h"
#include "tensor/cuda/attention/prefill_softmax.h"
#include "tensor/cuda/attention/prefill_split.h"
#include "tensor/cuda/attention/prefill_tasks.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"

namespace sluice::cuda {
namespace prefill {
namespace {

constexpr int kThreads = (1 + kGroups) * kGroupThreads;
constexpr float kLog2e = 1.4426950408889634f;

// Queries as wgmma takes them: this warp's 16 rows in registers (a fifth less reads of shared memory: 2-3 %
// faster), or where registers are short, the group's rows in shared memory.
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

// A warp's 16 rows of a task.
struct WarpRows {
  int in_tile;  // the first's place
  int first;    // of the item's rows
  int head;

  __device__ WarpRows(const Task& task, int group)
      : in_tile(group * kGroupRows + threadIdx.x % kGroupThreads / 32 * 16),
        first(in_tile + group * (task.row_step - kGroupRows)),
        head(task.head + group * task.head_step) {}
};

// Value rows that no token has filled: every warpgroup clears them for itself (the same zeros; cheaper than
// making the two meet).
template <class S>
__device__ void clear_stale(__nv_bfloat16* values, const Task& task, int group) {
  const int chunks = (task.stale_end - task.stale) * S::kPanels * 8;
  for (int i = threadIdx.x % kGroupThreads; i < chunks; i += kGroupThreads) {
    const int panel = i / 8 % S::kPanels, row = task.stale + i / 8 / S::kPanels;
    *reinterpret_cast<uint4*>(values + (panel * S::kTokens + row) * kPanel + i % 8 * 8) = uint4{};
  }
  ptx::async_proxy_fence();
  ptx::named_sync(1 + kGroups + group, kGroupThreads);
}

// The warp's 16 rows, through its part of the query tile, which nobody reads any more: whole ones as boxes by
// the copy engine (await_store_reads() must follow before the tile is released), ragged ones row by row.
template <class S>
__device__ __forceinline__ void store_rows(const Parameters& p, const CUtensorMap& out, const Task& task,
                                           const float (&outputs)[S::kOutputs], const float (&factor)[2],
                                           __nv_bfloat16* queries, const WarpRows& w) {
  const int lane = threadIdx.x % 32;
  // 16 rows of each panel; chunk c of row r lies at c ^ r % 8.
  __nv_bfloat16* mine = queries + w.in_tile * kPanel;
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
  ptx::async_proxy_fence();
  __syncwarp();
  if (w.first + 16 <= task.rows) {
    if (lane < S::kPanels) {
      ptx::store_box(&out, mine + lane * kTileRows * kPanel, w.head * S::kColumns + lane * kPanel,
                     task.row_begin + w.first);
    }
    return;
  }
  constexpr int kChunks = S::kColumns / 8;
  const int chunks = (task.rows - w.first) * kChunks;
  for (int i = lane; i < chunks; i += 32) {
    const int row = i / kChunks, c = i % kChunks;
    __nv_bfloat16* to = p.out + (task.row_begin + w.first + row) * p.out_stride + w.head * S::kColumns + c * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk(row, c));
  }
}

// Leaves this warp's sums over a piece, as its registers hold them. For the last of the pieces' warps: takes
// the sums of all, in the order of the context, into `outputs` and `sum`, and returns true. No warp reads a sum
// before its writer's fence and arrival, and none again before the next launch.
template <class S>
__device__ __forceinline__ bool join_pieces(const Parameters& p, const Task& task,
                                            float (&outputs)[S::kOutputs], const float (&base)[2],
                                            float (&sum)[2], int warp) {
  constexpr int kLines = S::kOutputs / 4 + 1;  // of 32 x float4
  const int lane = threadIdx.x % 32;
  const auto line_of = [&](int piece) {
    const int64_t slot = task.slot + piece * (p.heads >> task.head_step);
    return p.pieces.sums + (slot * PrefillPieces::kWarps + warp) * kLines * 32 + lane;
  };
  float4* const mine = line_of(task.piece);
#pragma unroll
  for (int j = 0; j < kLines - 1; ++j)
    mine[j * 32] = {outputs[4 * j], outputs[4 * j + 1], outputs[4 * j + 2], outputs[4 * j + 3]};
  mine[(kLines - 1) * 32] = {base[0], sum[0], base[1], sum[1]};
  __threadfence();
  __syncwarp();
  int32_t* const arrived = p.pieces.arrived + int64_t(task.slot) * PrefillPieces::kWarps + warp;
  int before = 0;
  if (lane == 0) before = atomicAdd(arrived, 1);
  if (__shfl_sync(~0u, before, 0) != task.pieces - 1) return false;
  __threadfence();
  if (lane == 0) *arrived = 0;

  // Two pieces at a time where registers allow, since each has a trip to the L2 to wait for.
  constexpr int kAtOnce = S::kColumns > 128 ? 1 : 2;
  const auto weight_of = [](float base, float top) {  // a row may see nothing of a piece
    return base == -INFINITY ? 0 : ptx::exp2_approx(base - top);
  };
  float top[2] = {-INFINITY, -INFINITY};
  sum[0] = sum[1] = 0;
#pragma unroll
  for (float& o : outputs) o = 0;
#pragma unroll 1
  for (int piece = 0; piece < task.pieces; piece += kAtOnce) {
    const float4* from[kAtOnce];
    float bases[kAtOnce][2], sums[kAtOnce][2], highest[2] = {top[0], top[1]};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = i == 0 || piece + i < task.pieces;
      from[i] = line_of(there ? piece + i : piece);
      const float4 x = __ldcg(from[i] + (kLines - 1) * 32);
      bases[i][0] = there ? x.x : -INFINITY, bases[i][1] = there ? x.z : -INFINITY;
      sums[i][0] = x.y, sums[i][1] = x.w;
      highest[0] = fmaxf(highest[0], bases[i][0]), highest[1] = fmaxf(highest[1], bases[i][1]);
    }
    float before[2], weight[kAtOnce][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      before[r] = weight_of(top[r], highest[r]);
      top[r] = highest[r];
      sum[r] *= before[r];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        weight[i][r] = weight_of(bases[i][r], highest[r]);
        sum[r] += weight[i][r] * sums[i][r];
      }
    }
#pragma unroll
    for (int j = 0; j < kLines - 1; ++j) {
      float* const o = &outputs[4 * j];
      o[0] *= before[0], o[1] *= before[0], o[2] *= before[1], o[3] *= before[1];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float4 v = __ldcg(from[i] + j * 32);
        o[0] += weight[i][0] * v.x, o[1] += weight[i][0] * v.y;
        o[2] += weight[i][1] * v.z, o[3] += weight[i][1] * v.w;
      }
    }
  }
  return true;
}

template <class S, bool capped>
__device__ void consume(const Parameters& p, const CUtensorMap& out, Shared<S>& shared, int group) {
  const int lane = threadIdx.x % 32;
  // Named barriers: whose turn it is to start products.
  const int mine = 1 + group, theirs = 1 + (group + 1) % kGroups;
  Turn<kPlanned> plan_turn;
  Turn<S::kQueryTiles> query_turn;
  Turn<S::kStages> key_turn, value_turn;
  const auto release = [&](uint64_t* empty) {  // of a tile: to all who write into it
    if constexpr (S::kPair > 1) {
      if (lane < S::kPair) ptx::barrier_arrive_in(empty, uint32_t(lane));
    } else {
      if (lane == 0) ptx::barrier_arrive(empty);
    }
  };
  const auto await_keys = [&] { ptx::barrier_wait(&shared.key_full[key_turn.stage], key_turn.parity); };
  const auto await_values = [&] { ptx::barrier_wait(&shared.value_full[value_turn.stage], value_turn.parity); };
  const auto release_keys = [&] {
    release(&shared.key_empty[key_turn.stage]);
    key_turn.advance();
  };
  const auto release_values = [&] {
    release(&shared.value_empty[value_turn.stage]);
    value_turn.advance();
  };
  // Once what was stored from there has been read: that is waited for after the next task's start.
  int stored = -1;
  const auto release_queries = [&](int stage) {
    ptx::await_store_reads();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&shared.query_empty[stage]);
    stored = -1;
  };
  // The first group starts.
  if (group == kGroups - 1) ptx::named_arrive(theirs, kGroups * kGroupThreads);

  for (;; plan_turn.advance(), query_turn.advance()) {
    ptx::barrier_wait(&shared.planned[plan_turn.stage], plan_turn.parity);
    const Task task = shared.tasks[plan_turn.stage];
    if (task.rows == 0) break;
    const auto forget_task = [&] {
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(&shared.forgotten[plan_turn.stage]);
    };
    ptx::barrier_wait(&shared.query_full[query_turn.stage], query_turn.parity);
    const int group_row = group * task.row_step;
    if (group_row >= task.rows) {  // a short task: hands on what the other group waits for
      if (stored >= 0) release_queries(stored);
      for (int left = task.tiles - 1; left >= 0; --left) {
        await_keys();
        release_keys();
        if (left < task.tiles - 1) {
          ptx::named_sync(mine, kGroups * kGroupThreads);
          ptx::named_arrive(theirs, kGroups * kGroupThreads);
        }
        await_values();
        release_values();
      }
      if (lane == 0) ptx::barrier_arrive(&shared.query_empty[query_turn.stage]);
      forget_task();
      continue;
    }
    const int group_position = task.position + group_row;
    const int row_position = task.position + WarpRows(task, group).first + lane / 4;
    Queries<S> queries;
    queries.load(shared.queries[query_turn.stage], group * kGroupRows, WarpRows(task, group).in_tile);

    float scores[S::kScores], outputs[S::kOutputs], correction[2];
    uint32_t weights[S::kTokens / 16][4];
    Softmax softmax;
    const auto mask = [&](int tile) {
      if constexpr (capped) cap_scores(scores, p.cap_scale);
      // Uniform in the group: some row does not see all of the tile.
      if (tile + S::kTokens - 1 > group_position) [[unlikely]]
        mask_scores<true>(scores, row_position, tile);
      if (tile < group_position + kGroupRows - p.window) [[unlikely]]
        mask_scores<false>(scores, row_position - p.window + 1, tile);
    };
    const auto rescale = [&] {
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) outputs[i] *= correction[i / 2 % 2];
    };

#pragma unroll
    for (float& o : outputs) o = 0;
    int tile = task.first + (task.tiles - 1) * S::kTokens;
    await_keys();
    start_scores(scores, queries, shared.keys[key_turn.stage]);
    if (stored >= 0) release_queries(stored);
    ptx::wgmma_wait_for<0>(scores);
    release_keys();
    mask(tile);
    softmax.update(scores, p.score_scale, weights, correction);
    if (task.stale < task.stale_end) {
      await_values();
      clear_stale<S>(shared.values[value_turn.stage], task, group);
    }

    // A turn: outputs of this tile, then scores of the next. The tensor cores' queue is short: when the last
    // product has been enqueued, little is left to wait for, so the softmax overlaps the other group's turn and
    // not this one's products. Tried and lost: waiting for the outputs after the softmax; scores first (0-2 %);
    // one stream of turns over the tiles of all tasks, so that a task's end overlaps the next one's start (5-10
    // %: the loop outgrows the instruction cache, it seems).
    for (int left = task.tiles - 1; left > 0; --left) {
      tile -= S::kTokens;
      await_keys();
      await_values();
      ptx::named_sync(mine, kGroups * kGroupThreads);
      start_outputs<S>(outputs, weights, shared.values[value_turn.stage]);
      start_scores<S>(scores, queries, shared.keys[key_turn.stage]);
      ptx::named_arrive(theirs, kGroups * kGroupThreads);
      ptx::wgmma_wait_for<1>(outputs);
      release_values();
      ptx::wgmma_wait_for<0>(scores);
      release_keys();
      mask(tile);
      if (softmax.update(scores, p.score_scale, weights, correction)) [[unlikely]]
        rescale();
    }
    await_values();
    start_outputs<S>(outputs, weights, shared.values[value_turn.stage]);
    float sum[2], factor[2];
    const auto find_factors = [&] {
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = sum[r] > 0 ? __fdividef(1, sum[r]) : 0;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = softmax.sum[r];
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
    find_factors();
    ptx::wgmma_wait_for<0>(outputs);
    release_values();
    // Read again: the loop above has no registers to spare for what only its end needs.
    const Task ended = shared.tasks[plan_turn.stage];
    forget_task();
    const WarpRows w(ended, group);
    bool complete = true;
    if (ended.pieces > 1) [[unlikely]] {
      complete = w.first < ended.rows && join_pieces<S>(p, ended, outputs, softmax.base, sum, w.in_tile / 16);
      find_factors();
    }
    if (complete) store_rows<S>(p, out, ended, outputs, factor, shared.queries[query_turn.stage], w);
    if constexpr (S::kQueryTiles == 1) {
      release_queries(0);
    } else {
      stored = query_turn.stage;
    }
  }
  ptx::await_store_reads();
}

template <class S, bool capped>
__device__ __forceinline__ void prefill_block(const CUtensorMap& pool, const CUtensorMap& queries,
                                              const CUtensorMap& out, const Parameters& p) {
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
    consume<S, capped>(p, out, shared, group - 1);
  }
  if constexpr (S::kPair > 1) ptx::cluster_sync();  // the other may still write here
}

template <class S, bool capped>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap pool, const __grid_constant__ CUtensorMap queries,
                   const __grid_constant__ CUtensorMap out, const __grid_constant__ Parameters p) {
  prefill_block<S, capped>(pool, queries, out, p);
}
template <class S, bool capped>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(2, 1, 1)
    prefill_pair_kernel(const __grid_constant__ CUtensorMap pool, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ CUtensorMap out, const __grid_constant__ Parameters p) {
  prefill_block<S, capped>(pool, queries, out, p);
}

template <class S>
constexpr size_t shared_bytes() {
  return sizeof(Shared<S>) + 1024;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, Parameters);
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

int prefill_tile_tokens(const KvGeometry& g) {
  static_assert(prefill::Shape<128, 1>::kTokens == prefill::Shape<64, 1>::kTokens);
  if (!prefill_uses_wgmma(g)) return 0;
  return g.head_dim > 128 ? prefill::Shape<256, 1>::kTokens : prefill::Shape<128, 1>::kTokens;
}

int prefill_heads_per_tile(const KvGeometry& g, int heads) {
  return prefill_uses_wgmma(g) && heads / g.kv_heads % 4 == 0 ? 2 : 1;
}

int prefill_slots(int multiprocessors) { return kPieceRounds * multiprocessors; }

size_t prefill_slot_bytes(const KvGeometry& g) {
  static_assert(PrefillPieces::kWarps == prefill::kConsumerWarps);
  return sizeof(float4) * PrefillPieces::kWarps * size_t(g.head_dim / 8 + 1) * 32;
}

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
                   const PrefillPieces& pieces, const CUtensorMap& pool_map, const Unpacked* unpacked) {
  const KvRows rows(a.geometry);
  CHECK(prefill_uses_wgmma(a.geometry) && a.heads % rows.kv_heads == 0);
  CHECK(a.out.stride % 8 == 0, "rows of the output are written 16 bytes at a time");
  prefill::Parameters p{};
  p.count = plan.count;
  p.items = plan.items;
  p.pieces = pieces;
  p.positions = a.batch.positions;
  p.kv_lengths = a.batch.kv_lengths;
  p.table = a.batch.tables[a.kv.group];
  p.table_stride = a.batch.table_stride;
  p.out = static_cast<__nv_bfloat16*>(a.out.data);
  p.out_stride = a.out.stride;
  p.heads = a.heads;
  p.heads_per_kv = a.heads / rows.kv_heads;
  p.block_tokens = rows.block_tokens;
  p.block_rows = int(a.kv.block_bytes / (size_t(rows.head_dim) * 2));
  p.key_row = int(rows.layer_row(a.kv.layer_in_group));
  if (unpacked) {
    p.table = unpacked->rows;
    p.table_stride = unpacked->row_blocks;
    p.block_rows = 1;
    p.key_row = 0;
  }
  p.value_rows = int(rows.value_rows());
  p.window = a.window > 0 ? a.window : 1 << 30;
  p.score_scale = (a.softcap > 0 ? a.softcap : a.scale) * prefill::kLog2e;
  p.cap_scale = a.softcap > 0 ? 2 * prefill::kLog2e * a.scale / a.softcap : 0;
  const CUtensorMap queries = tensor_map_bf16(a.q.data, a.batch.tokens, a.q.cols, a.q.stride,
                                              prefill::kGroupRows, prefill::kPanel, 128);
  const CUtensorMap out = tensor_map_bf16(a.out.data, a.batch.tokens, int64_t(a.heads) * a.geometry.head_dim,
                                          a.out.stride, 16, prefill::kPanel, 128);
  const prefill::Choice c = prefill::choose(a.geometry.head_dim, a.softcap > 0, p.heads_per_kv % 2 == 0);
  const int grid = context.multiprocessors / c.pair * c.pair;
  launch(context, c.kernel, dim3(unsigned(grid)), dim3(prefill::kThreads), c.shared_bytes, pool_map, queries,
         out, p);
}

}  // namespace sluice::cuda
