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
#include <cuda_bf16.h>

#include "base/check.h"
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/ptx/wgmma_attention.h"

namespace sluice::cuda {
namespace {

constexpr int kTileRows = 128;  // query rows a task
constexpr int kGroupRows = 64;  // of one warpgroup
constexpr int kGroups = kTileRows / kGroupRows;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (1 + kGroups) * kGroupThreads;
constexpr int kPanel = 64;  // columns that a 128-byte swizzle row holds
constexpr int kShortTiles = 8;
constexpr int kNowhere = -(1 << 20);  // a row outside of the pool: reads as zeros
constexpr float kLog2e = 1.4426950408889634f;

// What differs by head width. At 256 columns the output takes 128 registers a thread, so scores get 32.
// `pair`: 2 where two blocks with query heads of one kv head run as a cluster and share every tile.
template <int head_dim, int pair>
struct Shape {
  static constexpr int kPair = pair;
  static constexpr int kColumns = head_dim;
  static constexpr int kPanels = head_dim / kPanel;
  static constexpr int kTokens = head_dim > 128 ? 64 : 128;
  static constexpr int kStages = 2;                      // of the key ring, and of the value ring
  static constexpr int kTasks = head_dim > 128 ? 1 : 2;  // query tiles
  static constexpr int kScores = kTokens / 2;            // registers a thread
  static constexpr int kOutputs = head_dim / 2;          // registers a thread
  static constexpr int kKvElements = kTokens * head_dim;
  static constexpr int kQueryElements = kTileRows * head_dim;
};

struct Parameters {
  const int32_t* count;
  const PrefillItem* items;
  const int32_t* positions;
  const int32_t* kv_lengths;
  const int32_t* table;
  __nv_bfloat16* out;
  int64_t out_stride;
  int table_stride;
  int heads, heads_per_kv;
  int block_tokens, block_rows, key_row, value_rows;  // rows of the pool's matrix
  int window;                                         // 2^30 where there is none
  float score_scale;                                  // turns (capped) scores into exponents of 2
  float cap_scale;                                    // of scores inside exp2, for tanh; 0: no cap
};

// One tile of query rows of one head, as the producer tells it to the consumers.
struct Task {
  int rows;       // 0: no more tasks
  int row_begin;  // in the step
  int head;
  int position;          // of the first row
  int first, tiles;      // tiles of kTokens cached positions from `first` on
  int stale, stale_end;  // value rows of the last tile that no token has filled
};

template <class S>
struct Shared {
  alignas(1024) __nv_bfloat16 queries[S::kTasks][S::kQueryElements];
  alignas(1024) __nv_bfloat16 keys[S::kStages][S::kKvElements];
  alignas(1024) __nv_bfloat16 values[S::kStages][S::kKvElements];
  uint64_t task_full[S::kTasks], task_empty[S::kTasks];
  uint64_t key_full[S::kStages], key_empty[S::kStages];
  uint64_t value_full[S::kStages], value_empty[S::kStages];
  Task tasks[S::kTasks];
};

// Position in a ring of `size` stages: which stage, and the parity of its current phase.
template <int size>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == size) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class S>
__device__ __forceinline__ Task make_task(const Parameters& p, const PrefillItem& item, int head) {
  Task t{};
  t.row_begin = item.row_begin;
  t.head = head;
  t.position = p.positions[item.row_begin];
  const int length = p.kv_lengths[item.sequence];
  t.rows = min(item.row_end - item.row_begin, length - t.position);
  if (t.rows <= 0) return t;
  const int last = t.position + t.rows - 1;
  t.first = max(0, t.position - p.window + 1) / p.block_tokens * p.block_tokens;
  t.tiles = (last - t.first) / S::kTokens + 1;
  const int tile = t.first + (t.tiles - 1) * S::kTokens;
  t.stale = length - tile;
  t.stale_end = min(S::kTokens, (last / p.block_tokens + 1) * p.block_tokens - tile);
  return t;
}

// -- Producer

// Where this lane's box of a tile lies: each lane brings one box, block lane / kPanels, panel lane % kPanels.
template <class S>
struct BoxSource {
  const int32_t* table;  // of the sequence
  int block, blocks;     // of this lane within a tile; per tile
  int first_block, last_block;
  bool active;

  __device__ int32_t row(const Parameters& p, int tile, int kv_head) const {
    const int b = first_block + tile * blocks + block;
    if (tile < 0 || !active || b > last_block) return kNowhere;
    const int32_t id = table[b];
    return id < 0 ? kNowhere : id * p.block_rows + p.key_row + kv_head * p.block_tokens;
  }
};

template <class S>
__device__ void load_tile(__nv_bfloat16* to, const CUtensorMap& pool, uint64_t* full, uint64_t* empty,
                          uint32_t parity, const BoxSource<S>& source, int block_tokens, int32_t row) {
  const int lane = threadIdx.x % 32;
  ptx::barrier_wait(empty, parity ^ 1);
  if (lane == 0) ptx::barrier_expect_bytes(full, S::kKvElements * 2);
  __syncwarp();
  if (!source.active) return;
  const int panel = lane % S::kPanels;
  to += panel * S::kTokens * kPanel + source.block * block_tokens * kPanel;
  if constexpr (S::kPair > 1) {
    ptx::copy_box_to_all(to, &pool, full, panel * kPanel, row, (1 << S::kPair) - 1);
  } else {
    ptx::copy_box(to, &pool, full, panel * kPanel, row);
  }
}

// Where contexts are short, blocks begin at different rounds of their tasks: tasks of one tile ask for four
// times the bytes a product that tasks of many tiles do, and all blocks doing them at the same time would wait
// for memory. With long contexts, blocks that walk the same keys at the same time find them in the L2.
template <class S>
__device__ int first_round(const Parameters& p, int rounds, int cluster) {
  if (rounds == 0) return 0;
  const PrefillItem& longest = p.items[0];
  if (p.positions[longest.row_begin] >= kShortTiles * S::kTokens) return 0;
  return cluster / max(1, p.heads_per_kv / S::kPair) % rounds;
}

template <class S>
__device__ void produce(const Parameters& p, const CUtensorMap& pool, const CUtensorMap& queries,
                        Shared<S>& shared) {
  const int lane = threadIdx.x % 32;
  const int rank = S::kPair > 1 ? int(ptx::cluster_rank()) : 0;
  const int clusters = int(gridDim.x) / S::kPair, cluster = int(blockIdx.x) / S::kPair,
            sets = p.heads / S::kPair;
  const int tasks = *p.count * sets, blocks = S::kTokens / p.block_tokens;
  Turn<S::kTasks> task_turn;
  Turn<S::kStages> key_turn, value_turn;
  // Tasks are in order of falling length; every other round goes backwards, which evens out the blocks' sums.
  const int rounds = (tasks + clusters - 1) / clusters;
  const int start = first_round<S>(p, rounds, cluster);
  for (int i = 0; i < rounds; ++i) {
    const int round = i + start < rounds ? i + start : i + start - rounds;
    const int index = round * clusters + (round % 2 ? clusters - 1 - cluster : cluster);
    if (index >= tasks) continue;
    const PrefillItem item = p.items[index / sets];
    const Task task = make_task<S>(p, item, index % sets * S::kPair + rank);
    if (task.rows <= 0) continue;

    ptx::barrier_wait(&shared.task_empty[task_turn.stage], task_turn.parity ^ 1);
    uint64_t* full = &shared.task_full[task_turn.stage];
    if (lane == 0) {
      shared.tasks[task_turn.stage] = task;
      ptx::barrier_expect_bytes(full, S::kQueryElements * 2);
    }
    __syncwarp();
    if (lane < S::kPanels) {
      ptx::copy_box(&shared.queries[task_turn.stage][lane * kTileRows * kPanel], &queries, full,
                    task.head * S::kColumns + lane * kPanel, task.row_begin);
    }
    task_turn.advance();

    BoxSource<S> source;
    source.table = p.table + int64_t(item.sequence) * p.table_stride;
    source.block = lane / S::kPanels;
    source.blocks = blocks;
    source.first_block = task.first / p.block_tokens;
    source.last_block = (task.position + task.rows - 1) / p.block_tokens;
    source.active = source.block < blocks && lane % S::kPair == rank;
    const int kv_head = task.head / p.heads_per_kv;
    int32_t row = source.row(p, task.tiles - 1, kv_head), next = source.row(p, task.tiles - 2, kv_head);
    const auto load_keys = [&](int32_t from) {
      load_tile<S>(shared.keys[key_turn.stage], pool, &shared.key_full[key_turn.stage],
                   &shared.key_empty[key_turn.stage], key_turn.parity, source, p.block_tokens, from);
      key_turn.advance();
    };
    load_keys(row);
#pragma unroll 1
    for (int tile = task.tiles - 1; tile >= 0; --tile) {
      const int32_t after = source.row(p, tile - 2, kv_head);  // table reads run a tile ahead of their use
      if (tile > 0) load_keys(next);
      load_tile<S>(shared.values[value_turn.stage], pool, &shared.value_full[value_turn.stage],
                   &shared.value_empty[value_turn.stage], value_turn.parity, source, p.block_tokens,
                   row == kNowhere ? kNowhere : row + p.value_rows);
      value_turn.advance();
      row = next;
      next = after;
    }
  }
  ptx::barrier_wait(&shared.task_empty[task_turn.stage], task_turn.parity ^ 1);
  if (lane == 0) {
    shared.tasks[task_turn.stage].rows = 0;
    ptx::barrier_arrive(&shared.task_full[task_turn.stage]);
  }
}

// -- Consumers. Registers of a thread hold rows `lane / 4` and 8 more of its warp's 16 (wgmma.h).

// scores[64, kTokens] = queries · keysᵀ, not waited for.
template <class S>
__device__ __forceinline__ void start_scores(float (&scores)[S::kScores], const __nv_bfloat16* queries,
                                             const __nv_bfloat16* keys) {
  const uint64_t q = ptx::swizzled_factor(ptx::shared_address(queries));
  const uint64_t k = ptx::swizzled_factor(ptx::shared_address(keys));
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kColumns / 16; ++i) {
    const uint64_t q_at = q + i / 4 * (kTileRows * kPanel * 2 >> 4) + i % 4 * ptx::kPieceStep;
    const uint64_t k_at = k + i / 4 * (S::kTokens * kPanel * 2 >> 4) + i % 4 * ptx::kPieceStep;
    ptx::wgmma_rows(scores, q_at, k_at, i > 0);
  }
  ptx::wgmma_commit();
}

// outputs[64, D] += weights[64, kTokens] · values, not waited for.
template <class S>
__device__ __forceinline__ void start_outputs(float (&outputs)[S::kOutputs],
                                              const uint32_t (&weights)[S::kTokens / 16][4],
                                              const __nv_bfloat16* values) {
  const uint64_t v = ptx::swizzled_columns(values, S::kTokens * kPanel * 2);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kTokens / 16; ++i) {
    ptx::wgmma_registers(outputs, weights[i], v + i * ptx::kTokenStep, true);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class S>
__device__ __forceinline__ void round_weights(uint32_t (&weights)[S::kTokens / 16][4],
                                              const float (&scores)[S::kScores]) {
#pragma unroll
  for (int i = 0; i < S::kTokens / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) weights[i][j] = bf16_pair(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
  }
}

// Scores outside of [position - window + 1, position] become -inf. `row_position`: of this thread's first row;
// `tile`: position of the tile's first token.
template <int n>
__device__ __forceinline__ void mask_scores(float (&scores)[n], int row_position, int tile, int window) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int last = row_position + 8 * r - tile - column, first = last - window + 1;
#pragma unroll
    for (int j = 0; j < n / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = 8 * j + e;
        if (at > last || at < first) scores[4 * j + 2 * r + e] = -INFINITY;
      }
    }
  }
}

// tanh(x) = 1 - 2 / (e^2x + 1); `scale` holds the factor 2 / ln 2 and 1 / cap.
template <int n>
__device__ __forceinline__ void cap_scores(float (&scores)[n], float scale) {
#pragma unroll
  for (int i = 0; i < n; ++i) scores[i] = 1 - __fdividef(2, ptx::exp2_approx(scores[i] * scale) + 1);
}

// The running softmax of this thread's two rows; `sum` is of this thread's columns only until the end.
//
// Weights are exponents relative to `base`, a maximum seen before, not always the latest: only where the scores
// have outgrown it by a factor of 2^kSlack are sums rescaled (as FlashAttention-4 does). That is exact, since
// numerator and denominator share the base, and spares nearly all of the products by the correction.
constexpr float kSlack = 8;

struct Softmax {
  float base[2] = {-INFINITY, -INFINITY};  // exponent of 2
  float sum[2] = {0, 0};

  // Scores become weights. True (for the warp) where sums so far must be multiplied by `correction`.
  template <int n>
  __device__ __forceinline__ bool update(float (&scores)[n], float scale, float (&correction)[2]) {
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float part[4];
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        const float pair = fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]);
        part[j % 4] = j < 4 ? pair : fmaxf(part[j % 4], pair);
      }
      top[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2)) * scale;
    const bool grown = __any_sync(~0u, top[0] > base[0] + kSlack || top[1] > base[1] + kSlack);
    float subtract[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = base[r];
      if (grown) base[r] = fmaxf(old, top[r]);
      subtract[r] = base[r] == -INFINITY ? 0 : base[r];  // a row may see nothing of a tile
      correction[r] = ptx::exp2_approx(old - subtract[r]);
      float total[2] = {};
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[4 * j + 2 * r + e];
          x = ptx::exp2_approx(x * scale - subtract[r]);
          total[e] += x;
        }
      }
      sum[r] = sum[r] * correction[r] + (total[0] + total[1]);
    }
    return grown;
  }
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

template <class S, bool capped>
__device__ void consume(const Parameters& p, Shared<S>& shared, int group) {
  const int lane = threadIdx.x % 32;
  const int warp_row = group * kGroupRows + threadIdx.x % kGroupThreads / 32 * 16;
  const int mine = 1 + group,
            theirs = 1 + (group + 1) % kGroups;  // named barriers: whose turn to start products
  Turn<S::kTasks> task_turn;
  Turn<S::kStages> key_turn, value_turn;
  const auto release = [&](uint64_t* empty) {  // of a tile: to all who write into it
    if constexpr (S::kPair > 1) {
      if (lane < S::kPair) ptx::barrier_arrive_in(empty, uint32_t(lane));
    } else {
      if (lane == 0) ptx::barrier_arrive(empty);
    }
  };
  if (group == kGroups - 1) ptx::named_arrive(theirs, kGroups * kGroupThreads);  // the first group starts

  for (;; task_turn.advance()) {
    ptx::barrier_wait(&shared.task_full[task_turn.stage], task_turn.parity);
    const Task task = shared.tasks[task_turn.stage];
    if (task.rows == 0) return;
    __nv_bfloat16* const queries = shared.queries[task_turn.stage];
    const __nv_bfloat16* const group_queries = queries + group * kGroupRows * kPanel;
    const int group_position = task.position + group * kGroupRows;
    const int row_position = task.position + warp_row + lane / 4;

    float scores[S::kScores], outputs[S::kOutputs], correction[2];
    uint32_t weights[S::kTokens / 16][4];
    Softmax softmax;
    const auto to_weights = [&](int tile) {
      if constexpr (capped) cap_scores(scores, p.cap_scale);
      // Uniform in the group: some row sees less than the tile.
      if (tile + S::kTokens - 1 > group_position || tile < group_position + kGroupRows - p.window) {
        mask_scores(scores, row_position, tile, p.window);
      }
      return softmax.update(scores, p.score_scale, correction);
    };

    const auto finish_outputs = [&](bool started) {
      ptx::wgmma_wait_for<0>(outputs);
      if (!started) return;
      release(&shared.value_empty[value_turn.stage]);
      value_turn.advance();
    };
    const auto rescale = [&] {
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) outputs[i] *= correction[i / 2 % 2];
    };

#pragma unroll
    for (float& o : outputs) o = 0;
    int tile = task.first + (task.tiles - 1) * S::kTokens;
    ptx::barrier_wait(&shared.key_full[key_turn.stage], key_turn.parity);
    start_scores<S>(scores, group_queries, shared.keys[key_turn.stage]);
    ptx::wgmma_wait_for<0>(scores);
    release(&shared.key_empty[key_turn.stage]);
    key_turn.advance();
    bool grown = to_weights(tile);
    if (task.stale < task.stale_end) {
      ptx::barrier_wait(&shared.value_full[value_turn.stage], value_turn.parity);
      clear_stale<S>(shared.values[value_turn.stage], task, group);
    }

    // The products of a turn are waited for in the next turn. (Waited for at the end of its own, the compiler
    // moved the wait up, before the softmax, and nothing overlapped.)
    for (int left = task.tiles - 1; left > 0; --left) {
      finish_outputs(left < task.tiles - 1);
      if (grown) rescale();
      round_weights<S>(weights, scores);
      tile -= S::kTokens;
      ptx::barrier_wait(&shared.key_full[key_turn.stage], key_turn.parity);
      ptx::named_sync(mine, kGroups * kGroupThreads);
      start_scores<S>(scores, group_queries, shared.keys[key_turn.stage]);
      ptx::barrier_wait(&shared.value_full[value_turn.stage], value_turn.parity);
      start_outputs<S>(outputs, weights, shared.values[value_turn.stage]);
      ptx::named_arrive(theirs, kGroups * kGroupThreads);
      ptx::wgmma_wait_for<1>(scores);
      release(&shared.key_empty[key_turn.stage]);
      key_turn.advance();
      grown = to_weights(tile);
    }
    finish_outputs(task.tiles > 1);
    if (grown) rescale();
    round_weights<S>(weights, scores);
    ptx::barrier_wait(&shared.value_full[value_turn.stage], value_turn.parity);
    start_outputs<S>(outputs, weights, shared.values[value_turn.stage]);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[r] = sum > 0 ? 1 / sum : 0;
    }
    finish_outputs(true);
    store_rows<S>(p, task, outputs, factor, queries, warp_row);
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&shared.task_empty[task_turn.stage]);
  }
}

template <class S, bool capped>
__device__ __forceinline__ void prefill_block(const CUtensorMap& pool, const CUtensorMap& queries,
                                              const Parameters& p) {
  extern __shared__ uint8_t raw[];
  Shared<S>& shared =
      *reinterpret_cast<Shared<S>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroups * kGroupThreads / 32;
    for (int i = 0; i < S::kTasks; ++i) {
      ptx::barrier_init(&shared.task_full[i], 1);
      ptx::barrier_init(&shared.task_empty[i], kWarps);
    }
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(&shared.key_full[i], 1);
      ptx::barrier_init(&shared.key_empty[i], kWarps * S::kPair);
      ptx::barrier_init(&shared.value_full[i], 1);
      ptx::barrier_init(&shared.value_empty[i], kWarps * S::kPair);
    }
    ptx::barrier_init_fence();
  }
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
  } else {
    ptx::take_registers<232>();
    consume<S, capped>(p, shared, group - 1);
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

bool prefill_uses_wgmma(const KvGeometry& g) {
  return (g.head_dim == 64 || g.head_dim == 128 || g.head_dim == 256) &&
         (g.block_tokens == 16 || g.block_tokens == 32 || g.block_tokens == 64);
}

int prefill_tile_rows(const KvGeometry& g) { return prefill_uses_wgmma(g) ? kTileRows : 64; }

CUtensorMap prefill_pool_map(std::byte* pool, size_t bytes, const KvGeometry& g) {
  const size_t rows = bytes / (size_t(g.head_dim) * 2);
  CHECK(rows <= INT32_MAX, "the block pool has more rows than a tensor map can name");
  return tensor_map_bf16(pool, int64_t(rows), g.head_dim, g.head_dim, g.block_tokens, kPanel, 128);
}

void prefill_wgmma_prepare(const KvGeometry& g) {
  for (const auto& [capped, paired] : {std::pair{false, false}, {true, false}, {false, true}}) {
    const Choice c = choose(g.head_dim, capped, paired);
    CUDA_CHECK(
        cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(c.shared_bytes)));
  }
}

void prefill_wgmma(const Context& context, const AttentionArgs& a, const PrefillPlan& plan,
                   const CUtensorMap& pool_map) {
  const KvRows rows(a.geometry);
  CHECK(prefill_uses_wgmma(a.geometry) && a.heads % rows.kv_heads == 0);
  CHECK(a.out.stride % 8 == 0, "rows of the output are written 16 bytes at a time");
  Parameters p{};
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
  p.score_scale = (a.softcap > 0 ? a.softcap : a.scale) * kLog2e;
  p.cap_scale = a.softcap > 0 ? 2 * kLog2e * a.scale / a.softcap : 0;
  const CUtensorMap queries =
      tensor_map_bf16(a.q.data, a.batch.tokens, a.q.cols, a.q.stride, kTileRows, kPanel, 128);
  const Choice c = choose(a.geometry.head_dim, a.softcap > 0, p.heads_per_kv % 2 == 0);
  const int grid = context.multiprocessors / c.pair * c.pair;
  launch(context, c.kernel, dim3(unsigned(grid)), dim3(kThreads), c.shared_bytes, pool_map, queries, p);
}

}  // namespace sluice::cuda
