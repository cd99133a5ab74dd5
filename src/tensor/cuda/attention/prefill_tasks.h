// What prefill_wgmma.cu's warps tell each other: tasks, rings of tiles in shared memory, and the two warps that
// feed them. The planner resolves tasks ahead of time (four dependent reads, 2 µs, which every short task would
// otherwise wait for); the producer asks the copy engine for tiles.
#pragma once

#include <cuda_bf16.h>

#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/ptx/wgmma_attention.h"

namespace sluice::cuda::prefill {

constexpr int kTileRows = 128;  // query rows a task
constexpr int kGroupRows = 64;  // of one warpgroup
constexpr int kGroups = kTileRows / kGroupRows;
constexpr int kGroupThreads = 128;
constexpr int kConsumerWarps = kGroups * kGroupThreads / 32;
constexpr int kPanel = 64;            // columns that a 128-byte swizzle row holds
constexpr int kNowhere = -(1 << 20);  // a row outside of the pool: reads as zeros
constexpr int kPlanned = 4;           // tasks that the planner may be ahead
constexpr int kShortTiles = 8;
constexpr int64_t kL2Bytes = 20 << 20;  // of keys and values that blocks may share through the L2 at a time

// What differs by head width. At 256 columns the output takes 128 registers a thread, so scores get 32 and
// queries stay in shared memory. `pair`: 2 where two blocks with query heads of one kv head run as a cluster
// and share every tile.
template <int head_dim, int pair>
struct Shape {
  static constexpr int kPair = pair;
  static constexpr int kColumns = head_dim;
  static constexpr int kPanels = head_dim / kPanel;
  static constexpr int kTokens = head_dim > 128 ? 64 : 128;
  static constexpr int kStages = 2;  // of the key ring, and of the value ring
  static constexpr int kQueryTiles = head_dim > 128 ? 1 : 2;
  static constexpr bool kQueriesInRegisters = head_dim <= 128;
  static constexpr int kScores = kTokens / 2;    // registers a thread
  static constexpr int kOutputs = head_dim / 2;  // registers a thread
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
  PrefillPieces pieces;
  float score_scale;  // turns (capped) scores into exponents of 2
  float cap_scale;    // of scores inside exp2, for tanh
};

// One tile of query rows: of one head, or each warpgroup's half of a head of its own. Or a piece of what they
// see.
struct Task {
  int rows;  // of each head; 0: no more tasks
  int row_begin;
  int head;                 // the first
  int row_step, head_step;  // from one warpgroup to the next: kGroupRows and 0, or 0 and 1
  int sequence;
  int position;          // of the first row
  int first, tiles;      // tiles of kTokens cached positions from `first` on
  int stale, stale_end;  // value rows of the last tile that no token has filled
  int piece, pieces;
  int slot;  // of piece 0's partial sums, where there are more
};

template <class S>
struct Shared {
  alignas(1024) __nv_bfloat16 queries[S::kQueryTiles][S::kQueryElements];
  alignas(1024) __nv_bfloat16 keys[S::kStages][S::kKvElements];
  alignas(1024) __nv_bfloat16 values[S::kStages][S::kKvElements];
  uint64_t planned[kPlanned], forgotten[kPlanned];
  uint64_t query_full[S::kQueryTiles], query_empty[S::kQueryTiles];
  uint64_t key_full[S::kStages], key_empty[S::kStages];
  uint64_t value_full[S::kStages], value_empty[S::kStages];
  Task tasks[kPlanned];

  __device__ void init_barriers() {
    for (int i = 0; i < kPlanned; ++i) {
      ptx::barrier_init(&planned[i], 1);
      ptx::barrier_init(&forgotten[i], kConsumerWarps + 1);
    }
    for (int i = 0; i < S::kQueryTiles; ++i) {
      ptx::barrier_init(&query_full[i], 1);
      ptx::barrier_init(&query_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(&key_full[i], 1);
      ptx::barrier_init(&key_empty[i], kConsumerWarps * S::kPair);
      ptx::barrier_init(&value_full[i], 1);
      ptx::barrier_init(&value_empty[i], kConsumerWarps * S::kPair);
    }
    ptx::barrier_init_fence();
  }
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

// -- Planner

// The order of tasks. `sets` query heads (or what a cluster takes of them at once) times `count` items make a
// line, cut into chunks of kv heads whose keys and values the L2 holds. Lengths fall along the last chunk, rise
// along the one before, and so on. Clusters take the tasks in rounds, every other one backwards: so every
// cluster's sum is nearly the same.
struct Line {
  int count, sets, chunk_sets;
  int clusters, cluster, rounds, start;

  template <class S>
  __device__ static Line make(const Parameters& p) {
    Line l;
    l.count = *p.count;
    l.clusters = int(gridDim.x) / S::kPair;
    l.cluster = int(blockIdx.x) / S::kPair;
    l.rounds = l.start = 0;
    if (l.count == 0) return l;
    const int heads = S::kPair * p.items[0].heads;  // of a set
    l.chunk_sets = l.sets = p.heads / heads;
    l.rounds = (l.count * l.sets + l.clusters - 1) / l.clusters;
    const int longest = p.positions[p.items[0].row_begin] / p.items[0].pieces;
    const int sets_per_kv = p.heads_per_kv / heads;
    int kv_heads = p.heads / p.heads_per_kv;
    while (kv_heads % 2 == 0 && int64_t(kv_heads) * longest * S::kColumns * 4 > kL2Bytes) kv_heads /= 2;
    l.chunk_sets = kv_heads * sets_per_kv;
    // Where contexts are short, clusters begin at different rounds: tasks of one tile ask for four times the
    // bytes a product that tasks of many tiles do, and all doing them at the same time would wait for memory.
    // With long contexts, clusters that walk the same keys at the same time find them in the L2.
    if (longest < kShortTiles * S::kTokens) l.start = l.cluster / max(1, sets_per_kv) % l.rounds;
    return l;
  }
  // Item and set of the i-th round's task; false where there is none.
  __device__ bool at(int i, int& item, int& set) const {
    const int round = i + start < rounds ? i + start : i + start - rounds;
    const int index = round * clusters + (round % 2 ? clusters - 1 - cluster : cluster);
    if (index >= count * sets) return false;
    const int chunk = index / (count * chunk_sets), within = index - chunk * count * chunk_sets;
    const bool rising = (sets / chunk_sets - 1 - chunk) % 2 != 0;
    item = rising ? count - 1 - within / chunk_sets : within / chunk_sets;
    set = chunk * chunk_sets + within % chunk_sets;
    return true;
  }
};

template <class S>
__device__ __forceinline__ Task make_task(const Parameters& p, const PrefillItem& item, int head) {
  Task t{};
  t.row_begin = item.row_begin;
  t.sequence = item.sequence;
  t.head = head;
  t.row_step = item.heads > 1 ? 0 : kGroupRows;
  t.head_step = item.heads - 1;
  t.position = p.positions[item.row_begin];
  const int length = p.kv_lengths[item.sequence];
  t.rows = max(0, min(item.row_end - item.row_begin, length - t.position));
  t.piece = item.piece;
  t.pieces = item.pieces;
  t.slot = item.slot + head / item.heads;
  const int last = t.position + t.rows - 1;
  t.first = max(0, t.position - p.window + 1) / p.block_tokens * p.block_tokens;
  t.tiles = (last - t.first) / S::kTokens + 1;
  if (t.pieces > 1) {
    const int begin = t.tiles * t.piece / t.pieces, end = t.tiles * (t.piece + 1) / t.pieces;
    t.first += begin * S::kTokens;
    t.tiles = end - begin;
  }
  const int tile = t.first + (t.tiles - 1) * S::kTokens;
  t.stale = length - tile;
  t.stale_end = min(S::kTokens, (last / p.block_tokens + 1) * p.block_tokens - tile);
  return t;
}

template <class S>
__device__ void plan(const Parameters& p, Shared<S>& shared) {
  const int lane = threadIdx.x % 32, rank = S::kPair > 1 ? int(ptx::cluster_rank()) : 0;
  const Line line = Line::make<S>(p);
  Turn<kPlanned> turn;
  const auto publish = [&](const Task& task) {
    ptx::barrier_wait(&shared.forgotten[turn.stage], turn.parity ^ 1);
    if (lane == 0) {
      shared.tasks[turn.stage] = task;
      ptx::barrier_arrive(&shared.planned[turn.stage]);
    }
    turn.advance();
  };
  for (int i = 0; i < line.rounds; ++i) {
    int item, set;
    if (!line.at(i, item, set)) continue;
    const PrefillItem& planned = p.items[item];
    const Task task = make_task<S>(p, planned, (set * S::kPair + rank) * planned.heads);
    if (task.rows == 0) continue;
    const int last = (task.position + task.rows - 1) / p.block_tokens - lane;
    if (last >= 0)
      ptx::prefetch(p.table + int64_t(task.sequence) * p.table_stride + last);  // what is read first
    publish(task);
  }
  publish(Task{});
}

// -- Producer

// Where this lane's box of a tile lies: each lane brings one box, block lane / kPanels, panel lane % kPanels.
template <class S>
struct BoxSource {
  const int32_t* table;  // of the sequence
  int block, blocks;     // of this lane within a tile; per tile
  int first_block, last_block;
  int key_row;
  bool active;

  __device__ BoxSource(const Parameters& p, const Task& task, int rank) {
    const int lane = threadIdx.x % 32;
    table = p.table + int64_t(task.sequence) * p.table_stride;
    block = lane / S::kPanels;
    blocks = S::kTokens / p.block_tokens;
    first_block = task.first / p.block_tokens;
    last_block = (task.position + task.rows - 1) / p.block_tokens;
    key_row = p.key_row + task.head / p.heads_per_kv * p.block_tokens;
    active = block < blocks && lane % S::kPair == rank;
  }
  __device__ int32_t row(const Parameters& p, int tile) const {
    const int b = first_block + tile * blocks + block;
    if (tile < 0 || !active || b > last_block) return kNowhere;
    const int32_t id = table[b];
    return id < 0 ? kNowhere : id * p.block_rows + key_row;
  }
};

template <class S>
__device__ __forceinline__ void load_tile(__nv_bfloat16* to, const CUtensorMap& pool, uint64_t* full,
                                          uint64_t* empty, uint32_t parity, const BoxSource<S>& source,
                                          int block_tokens, int32_t row) {
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

template <class S>
__device__ void produce(const Parameters& p, const CUtensorMap& pool, const CUtensorMap& queries,
                        Shared<S>& shared) {
  const int lane = threadIdx.x % 32, rank = S::kPair > 1 ? int(ptx::cluster_rank()) : 0;
  Turn<kPlanned> plan_turn;
  Turn<S::kQueryTiles> query_turn;
  Turn<S::kStages> key_turn, value_turn;
  for (;; plan_turn.advance(), query_turn.advance()) {
    ptx::barrier_wait(&shared.planned[plan_turn.stage], plan_turn.parity);
    const Task task = shared.tasks[plan_turn.stage];
    if (task.rows == 0) return;
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&shared.forgotten[plan_turn.stage]);
    const BoxSource<S> source(p, task, rank);
    int32_t row = source.row(p, task.tiles - 1), next = source.row(p, task.tiles - 2);

    ptx::barrier_wait(&shared.query_empty[query_turn.stage], query_turn.parity ^ 1);
    uint64_t* full = &shared.query_full[query_turn.stage];
    if (lane == 0) ptx::barrier_expect_bytes(full, S::kQueryElements * 2);
    __syncwarp();
    if (lane < S::kPanels * kGroups) {
      const int panel = lane % S::kPanels, group = lane / S::kPanels;
      ptx::copy_box(&shared.queries[query_turn.stage][(panel * kTileRows + group * kGroupRows) * kPanel],
                    &queries, full, (task.head + group * task.head_step) * S::kColumns + panel * kPanel,
                    task.row_begin + group * task.row_step);
    }
    const auto load_keys = [&](int32_t from) {
      load_tile<S>(shared.keys[key_turn.stage], pool, &shared.key_full[key_turn.stage],
                   &shared.key_empty[key_turn.stage], key_turn.parity, source, p.block_tokens, from);
      key_turn.advance();
    };
    load_keys(row);
#pragma unroll 1
    for (int tile = task.tiles - 1; tile >= 0; --tile) {
      const int32_t after = source.row(p, tile - 2);  // table reads run a tile ahead of their use
      if (tile > 0) load_keys(next);
      load_tile<S>(shared.values[value_turn.stage], pool, &shared.value_full[value_turn.stage],
                   &shared.value_empty[value_turn.stage], value_turn.parity, source, p.block_tokens,
                   row == kNowhere ? kNowhere : row + p.value_rows);
      value_turn.advance();
      row = next;
      next = after;
    }
  }
}

}  // namespace sluice::cuda::prefill
