// prefill_general: tiles of 64 query rows of one head against the paged cache, with the warp's matrix product.
// The order of work is FlashAttention-2's (Dao 2023): a warp owns 16 rows from scores to output, keys and
// values pass through shared memory in two stages, and the weights of the softmax stay in registers as bf16
// operands.
//
// Head widths are padded to 16, 32, 64, 96, 128 or 256 columns; what pads is zero in shared memory. So is every
// token that the tile may not see (behind its last row, before its window, in a block that is not held):
// unwritten cache slots may hold NaN, and 0 * NaN is NaN.
//
// Measured (H200, 32/8 heads, causal, blocks of 16): 1x4096 at widths 16, 32, 64, 80, 96, 128, 256: 83, 140,
// 193, 171, 209, 196, 183 TFLOP/s; 16x512: 58, 100, 141, 128, 151, 145, 141. Finding a token's place once
// instead of per 16 bytes, rescaling only when a maximum moves, and ex2 without its denormals gave 1.7 times
// the first version.
#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/copy_async.h"
#include "tensor/cuda/ptx/math.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32, kTileRows = kWarps * 16;
constexpr float kLog2e = 1.4426950408889634f;

// What a padded width costs: tokens per stage, CTAs that fit on a multiprocessor (shared memory, registers).
template <int kWidth>
struct Shape {
  static constexpr int kTokens = kWidth <= 128 ? 64 : 32;
  static constexpr int kPitch =
      kWidth + 8;  // elements; 16 bytes more than a row: ldmatrix without bank conflicts
  static constexpr int kQueryElements = kTileRows * kPitch, kStageElements = kTokens * kPitch;
  static constexpr int kSharedBytes = (kQueryElements + 4 * kStageElements) * 2;
  static constexpr int kResident = kWidth <= 64 ? 4 : kWidth <= 96 ? 3 : 2;
  static constexpr bool kQueriesInRegisters = kWidth <= 128;
};

struct Job {
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  int64_t q_stride, out_stride;
  const int32_t *positions, *table;
  int table_stride;
  const __nv_bfloat16* layer;  // of block 0
  size_t block_bytes;
  int64_t value_offset;  // elements from a key to its value
  int block_tokens, heads, group, head_dim, window;
  float scale, softcap;
  PrefillPlan plan;
};

// What a CTA works on: one tile of rows, one head.
struct Tile {
  int row_begin, rows, head;
  const int32_t* blocks;
  int position;    // of row_begin
  int first, end;  // cached tokens that any row sees
};

template <int kWidth>
__device__ void load_queries(const Job& job, const Tile& tile, __nv_bfloat16* to) {
  constexpr int kPieces = kWidth / 8;
  for (int c = int(threadIdx.x); c < kTileRows * kPieces; c += kThreads) {
    const int row = c / kPieces, column = c % kPieces * 8;
    const bool wanted = row < tile.rows && column < job.head_dim;
    const auto* from =
        job.q + (wanted ? (tile.row_begin + row) * job.q_stride + tile.head * job.head_dim + column : 0);
    ptx::copy_async_16(ptx::shared_address(to + row * Shape<kWidth>::kPitch + column), from, wanted);
  }
}

// Where a token's keys of the tile's kv head begin, in elements from `layer`; -1: no row may see it.
__device__ __forceinline__ int64_t place_of(const Job& job, const Tile& tile, int token) {
  if (token < tile.first || token >= tile.end) return -1;
  const int block = tile.blocks[token / job.block_tokens];
  if (block < 0) return -1;
  const int row = tile.head / job.group * job.block_tokens + token % job.block_tokens;
  return block * int64_t(job.block_bytes / 2) + row * job.head_dim;
}

template <int kWidth>
__device__ void load_tokens(const Job& job, const int64_t* places, __nv_bfloat16* keys, __nv_bfloat16* values) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll 4
  for (int c = int(threadIdx.x); c < Shape<kWidth>::kTokens * kPieces; c += kThreads) {
    const int column = c % kPieces * 8, at = c / kPieces * Shape<kWidth>::kPitch + column;
    const int64_t place = places[c / kPieces];
    const bool wanted = place >= 0 && column < job.head_dim;
    const __nv_bfloat16* from = job.layer + (wanted ? place + column : 0);
    ptx::copy_async_16(ptx::shared_address(keys + at), from, wanted);
    ptx::copy_async_16(ptx::shared_address(values + at), from + job.value_offset, wanted);
  }
}

// Shared memory address of lane's row of four 8x8 matrices: those of a 16x16 tile at (row, column), in the
// order rows first (queries, values) or columns first (keys).
template <int kPitch>
__device__ __forceinline__ uint32_t rows_first(const __nv_bfloat16* tile, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
  return ptx::shared_address(tile + (row + lane % 16) * kPitch + column + lane / 16 * 8);
}
template <int kPitch>
__device__ __forceinline__ uint32_t columns_first(const __nv_bfloat16* tile, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
  return ptx::shared_address(tile + (row + lane / 16 * 8 + lane % 8) * kPitch + column + lane / 8 % 2 * 8);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// A warp's 16 rows. A lane holds rows lane / 4 and lane / 4 + 8.
template <int kWidth>
struct Rows {
  using S = Shape<kWidth>;
  static constexpr int kScoreTiles = S::kTokens / 8, kOutTiles = kWidth / 8, kSteps = kWidth / 16;

  float out[kOutTiles][4];
  float highest[2], sum[2];  // of the scores as shape_scores leaves them; of their weights
  uint32_t queries[S::kQueriesInRegisters ? kSteps : 1][4];

  __device__ void begin(const __nv_bfloat16* q, int warp_row) {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) out[t][0] = out[t][1] = out[t][2] = out[t][3] = 0;
    highest[0] = highest[1] = -INFINITY, sum[0] = sum[1] = 0;
    if constexpr (S::kQueriesInRegisters) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        ptx::load_matrix_x4(queries[k], rows_first<S::kPitch>(q, warp_row, k * 16));
    }
  }

  __device__ void score(const __nv_bfloat16* q, int warp_row, const __nv_bfloat16* keys,
                        float (&s)[kScoreTiles][4]) {
#pragma unroll
    for (int t = 0; t < kScoreTiles; ++t) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t loaded[4];
      if constexpr (!S::kQueriesInRegisters)
        ptx::load_matrix_x4(loaded, rows_first<S::kPitch>(q, warp_row, k * 16));
      uint32_t(&a)[4] = S::kQueriesInRegisters ? queries[S::kQueriesInRegisters ? k : 0] : loaded;
#pragma unroll
      for (int t = 0; t < kScoreTiles; t += 2) {
        uint32_t b[4];
        ptx::load_matrix_x4(b, columns_first<S::kPitch>(keys, t * 8, k * 16));
        ptx::mma_16x8x16(s[t], a, b[0], b[1]);
        ptx::mma_16x8x16(s[t + 1], a, b[2], b[3]);
      }
    }
  }

  // Cap and mask; `position` is that of the lane's first row. Capped scores are in base 2, others as they come.
  __device__ void shape_scores(const Job& job, int begin, int position, bool masks,
                               float (&s)[kScoreTiles][4]) {
    if (job.softcap > 0) {
      const float inner = job.scale / job.softcap, outer = job.softcap * kLog2e;
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][i] = outer * tanhf(s[t][i] * inner);
      }
    }
    if (!masks) return;
    const int lowest =
        job.window > 0 ? position - job.window + 1 : -kTileRows;  // of the first row; the second's is 8 more
#pragma unroll
    for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = begin + t * 8 + int(threadIdx.x) % 4 * 2 + i % 2;
        if (token > position + i / 2 * 8 || token < lowest + i / 2 * 8) s[t][i] = -INFINITY;
      }
    }
  }

  // Scores (times `factor`: base 2) to weights; what was summed before is brought to the new maximum.
  __device__ void weigh(float factor, float (&s)[kScoreTiles][4]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = highest[r];
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) most = fmaxf(most, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
      most = quad_max(most);
      const float zero =
          most == -INFINITY ? 0 : most * factor;  // nothing seen yet (a window that begins later)
      shrink[r] = ptx::exp2_flushed(highest[r] * factor - zero);
      highest[r] = most;
      float added = 0;
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[t][i] = ptx::exp2_flushed(s[t][i] * factor - zero);
          added += s[t][i];
        }
      }
      sum[r] = sum[r] * shrink[r] + added;
    }
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) return;  // the usual case in a long context
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[t][i] *= shrink[i / 2];
    }
  }

  __device__ void add_values(const float (&s)[kScoreTiles][4], const __nv_bfloat16* values) {
#pragma unroll
    for (int k = 0; k < kScoreTiles / 2; ++k) {
      const uint32_t a[4] = {ptx::pack_bf16(s[2 * k][0], s[2 * k][1]), ptx::pack_bf16(s[2 * k][2], s[2 * k][3]),
                             ptx::pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]),
                             ptx::pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int t = 0; t < kOutTiles; t += 2) {
        uint32_t b[4];
        ptx::load_matrix_x4_transposed(b, rows_first<S::kPitch>(values, k * 16, t * 8));
        ptx::mma_16x8x16(out[t], a, b[0], b[1]);
        ptx::mma_16x8x16(out[t + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void store(const Job& job, const Tile& tile, int warp_row) const {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float share = 1 / quad_sum(sum[r]);
      const int row = warp_row + lane / 4 + r * 8;
      if (row >= tile.rows) continue;
      auto* to = job.out + (tile.row_begin + row) * job.out_stride + tile.head * job.head_dim + lane % 4 * 2;
#pragma unroll
      for (int t = 0; t < kOutTiles; ++t) {
        if (t * 8 < job.head_dim)
          *reinterpret_cast<uint32_t*>(to + t * 8) =
              ptx::pack_bf16(out[t][2 * r] * share, out[t][2 * r + 1] * share);
      }
    }
  }
};

template <int kWidth>
__device__ void attend(const Job& job, const Tile& tile, __nv_bfloat16* shared) {
  using S = Shape<kWidth>;
  __nv_bfloat16* queries = shared;
  const auto stage = [&](int i, bool value) {
    return shared + S::kQueryElements + (2 * (i % 2) + (value ? 1 : 0)) * S::kStageElements;
  };
  const int warp_row = int(threadIdx.x) / 32 * 16;
  const int origin = tile.first / S::kTokens * S::kTokens;
  const int stages = (tile.end - origin + S::kTokens - 1) / S::kTokens;
  const int position = tile.position + warp_row + int(threadIdx.x) % 32 / 4;

  // Places are found two stages ahead of their use, by one thread per token.
  __shared__ int64_t places[2][S::kTokens];
  const bool finds = int(threadIdx.x) < S::kTokens;
  if (finds) {
    for (int i = 0; i < 2; ++i)
      places[i][threadIdx.x] = place_of(job, tile, origin + i * S::kTokens + int(threadIdx.x));
  }
  load_queries<kWidth>(job, tile, queries);
  __syncthreads();
  load_tokens<kWidth>(job, places[0], stage(0, false), stage(0, true));
  ptx::copy_async_commit();
  const float factor = job.softcap > 0 ? 1 : job.scale * kLog2e;
  Rows<kWidth> rows;
  for (int i = 0; i < stages; ++i) {
    const int begin = origin + i * S::kTokens;
    if (i + 1 < stages) load_tokens<kWidth>(job, places[(i + 1) % 2], stage(i + 1, false), stage(i + 1, true));
    ptx::copy_async_commit();
    const int64_t place = finds ? place_of(job, tile, begin + 2 * S::kTokens + int(threadIdx.x)) : 0;
    ptx::copy_async_wait<1>();
    __syncthreads();
    if (i == 0) rows.begin(queries, warp_row);
    float s[Rows<kWidth>::kScoreTiles][4];
    rows.score(queries, warp_row, stage(i, false), s);
    if (finds) places[i % 2][threadIdx.x] = place;
    // Inside the diagonal and the window of all rows there is nothing to mask.
    const bool masks = begin + S::kTokens - 1 > tile.position ||
                       (job.window > 0 && begin <= tile.position + kTileRows - 1 - job.window);
    rows.shape_scores(job, begin, position, masks, s);
    rows.weigh(factor, s);
    rows.add_values(s, stage(i, true));
    __syncthreads();  // this stage is overwritten next
  }
  rows.store(job, tile, warp_row);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, Shape<kWidth>::kResident)
    prefill_tiles(const __grid_constant__ Job job) {
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  let_next_start();
  wait_for_previous();
  const int units = *job.plan.count * job.heads;
  for (int unit = int(blockIdx.x); unit < units; unit += int(gridDim.x)) {
    // Neighbours in the grid are heads of one tile: they read the same keys at about the same time.
    const PrefillItem item = job.plan.items[unit / job.heads];
    Tile tile;
    tile.row_begin = item.row_begin, tile.rows = item.row_end - item.row_begin, tile.head = unit % job.heads;
    if (tile.rows > kTileRows) __trap();  // a plan for another kernel
    tile.blocks = job.table + int64_t(item.sequence) * job.table_stride;
    tile.position = job.positions[item.row_begin];
    tile.first = job.window > 0 ? max(0, tile.position - job.window + 1) : 0;
    tile.end = tile.position + tile.rows;
    attend<kWidth>(job, tile, shared);
  }
}

template <typename F>
void with_width(int head_dim, const F& f) {
  if (head_dim <= 16) return f(std::integral_constant<int, 16>());
  if (head_dim <= 32) return f(std::integral_constant<int, 32>());
  if (head_dim <= 64) return f(std::integral_constant<int, 64>());
  if (head_dim <= 96) return f(std::integral_constant<int, 96>());
  if (head_dim <= 128) return f(std::integral_constant<int, 128>());
  f(std::integral_constant<int, 256>());
}

}  // namespace

void prefill_general_prepare(const KvGeometry& geometry) {
  CHECK(geometry.head_dim % 8 == 0 && geometry.head_dim <= 256, "head_dim: a multiple of 8 up to 256");
  with_width(geometry.head_dim, [](auto width) {
    CUDA_CHECK(cudaFuncSetAttribute(prefill_tiles<width>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Shape<width>::kSharedBytes));
  });
}

void prefill_general(const Context& context, const AttentionArgs& a, const PrefillPlan& plan) {
  const KvGeometry& g = a.geometry;
  CHECK(g.dtype == DType::bf16 && g.head_dim % 8 == 0 && g.head_dim <= 256 && a.heads % g.kv_heads == 0);
  CHECK(a.q.dtype == DType::bf16 && a.out.dtype == DType::bf16 && a.q.stride % 8 == 0 && a.out.stride % 8 == 0);
  const KvRows lie(g);
  const Job job = {.q = a.q.row<__nv_bfloat16>(0),
                   .out = a.out.row<__nv_bfloat16>(0),
                   .q_stride = a.q.stride,
                   .out_stride = a.out.stride,
                   .positions = a.batch.positions,
                   .table = a.batch.tables[a.kv.group],
                   .table_stride = a.batch.table_stride,
                   .layer = reinterpret_cast<const __nv_bfloat16*>(a.kv.pool) +
                            lie.layer_row(a.kv.layer_in_group) * g.head_dim,
                   .block_bytes = a.kv.block_bytes,
                   .value_offset = lie.value_rows() * g.head_dim,
                   .block_tokens = g.block_tokens,
                   .heads = a.heads,
                   .group = a.heads / g.kv_heads,
                   .head_dim = g.head_dim,
                   .window = a.window,
                   .scale = a.scale,
                   .softcap = a.softcap,
                   .plan = plan};
  with_width(g.head_dim, [&](auto width) {
    using S = Shape<width>;
    launch(context, prefill_tiles<width>, dim3(unsigned(context.multiprocessors * S::kResident)),
           dim3(kThreads), S::kSharedBytes, job);
  });
}

}  // namespace sluice::cuda
