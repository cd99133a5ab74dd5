// What one warp of the decode kernel does: walk its share of the plan, load tiles of keys and values, attend to
// them.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>

#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/ptx/copy_async.h"
#include "tensor/cuda/ptx/math.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {

constexpr int kTileTokens = 16;
// Of a CTA. Eight, one CTA to a multiprocessor, halve the pieces that a long context is cut into: 1.1 us less
// at 1 x 4096, 1.5 at 1 x 32768, the same at 128 x 576, 0.6 more at 8 x 576. Narrow heads gain more from three
// CTAs of four; wide ones have no room for eight.
constexpr int warps_of(int width) { return width == 128 ? 8 : 4; }
constexpr int kMostCtas = 400;  // of a grid
constexpr float kLog2E = 1.44269504f;

struct DecodeArgs {
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  const std::byte* keys;  // of the layer, in block 0
  const int32_t* table;
  const DecodeEntry* entries;
  const DecodeShare* shares;
  PieceColumn* pieces;
  int64_t q_stride, out_stride;  // elements
  int64_t block_bytes;
  int value_bytes, head_bytes;  // from keys to values, from head to head
  int table_stride, block_shift;
  int head_stride;  // of the table, where each kv head has its own; else 0
  int kv_heads, group, head_dim;
  float scale;    // of q·k, base 2 folded in; with a soft cap, of the exponent in its tanh
  float softcap;  // base 2 folded in; 0: none
  bool reads_ahead;
};

// Rows of a tile in shared memory: 16-byte pieces swizzled, or rows padded to an odd number of pieces where
// their number is no power of two, so that the 8 rows of an 8x8 matrix lie in different banks.
template <int width>
struct TileLayout {
  static constexpr int kPieces = width / 8;
  static constexpr bool kSwizzled = (kPieces & (kPieces - 1)) == 0;
  static constexpr int kPitch = (kSwizzled ? kPieces : kPieces | 1) * 16;
  static constexpr int kBytes = kTileTokens * kPitch;
  __device__ static int offset(int row, int piece) {
    if constexpr (!kSwizzled) return row * kPitch + piece * 16;
    constexpr int kRowsPerLine = kPieces >= 8 ? 1 : 8 / kPieces;  // rows in 128 bytes
    constexpr int kMask = kPieces >= 8 ? 7 : kPieces - 1;
    return row * kPitch + (piece ^ (row / kRowsPerLine & kMask)) * 16;
  }
};

// Where a CTA is in its share: at a fragment, which is what a segment has of one head.
struct Walk {
  int segment = -1;
  int entry, head, chunk, left;
  DecodeEntry e;

  __device__ explicit Walk(const DecodeArgs& a) { next_segment(a); }
  __device__ void next_segment(const DecodeArgs& a) {
    left = 0;
    if (++segment == 3) return;
    const DecodeSegment& s = a.shares[blockIdx.x].segments[segment];
    entry = s.entry, head = s.head, chunk = s.chunk, left = s.count, e = s.e;
  }
  __device__ bool done() const { return left <= 0; }
  __device__ int chunks() const { return min(left, e.chunks - chunk); }  // of this fragment
  __device__ int start() const { return e.begin / kTileTokens * kTileTokens + chunk * kDecodeChunk; }
  __device__ int tiles() const {
    return (min(e.end, start() + chunks() * kDecodeChunk) - start() + kTileTokens - 1) / kTileTokens;
  }
  __device__ void advance(const DecodeArgs& a) {
    left -= chunks();
    if (left <= 0) return next_segment(a);
    chunk = 0;
    if (++head == a.kv_heads) {
      head = 0;
      e = a.entries[++entry];
    }
  }
};

// Starts the copies of 16 tokens of a block in full precision, from position `first` on, to shared memory. A
// block that is not there is never read; nor are rows outside of what the row sees, which may hold anything.
template <int width>
__device__ __forceinline__ void copy_tile(const DecodeArgs& a, const DecodeEntry& e, int head, int32_t block,
                                          int first, uint32_t to) {
  using Layout = TileLayout<width>;
  constexpr int kCopies = (kTileTokens * Layout::kPieces + 31) / 32;
  const int lane = int(threadIdx.x) % 32;
  const int inside = first & ((1 << a.block_shift) - 1);
  const int row_bytes = a.head_dim * 2;
  const std::byte* from = a.keys + block * a.block_bytes + head * a.head_bytes + inside * row_bytes;
  const int low = e.begin - first, high = block < 0 ? 0 : e.end - first;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int c = i * 32 + lane, row = c / Layout::kPieces, piece = c % Layout::kPieces;
    if (kTileTokens * Layout::kPieces % 32 != 0 && row >= kTileTokens) break;
    const bool wanted = row >= low && row < high && (width > 16 || piece * 8 < a.head_dim);
    const std::byte* source = wanted ? from + row * row_bytes + piece * 16 : a.keys;
    const uint32_t target = to + uint32_t(Layout::offset(row, piece));
    ptx::copy_async_16(target, source, wanted);
    ptx::copy_async_16(target + uint32_t(Layout::kBytes), wanted ? source + a.value_bytes : source, wanted);
  }
}

// A warp's stream of loads: its tiles of all fragments, in order.
template <int width, int stages>
struct Loader {
  using Layout = TileLayout<width>;
  static constexpr int kWarps = warps_of(width);
  static constexpr int kStageBytes = 2 * Layout::kBytes;

  Walk at;
  int tile = 0, tiles = 0;  // of this warp's in this fragment
  int32_t blocks = 0;       // lane i: the block of the warp's tile (tile rounded down to 32) + i
  uint32_t ring;            // this warp's
  int slot = 0;

  __device__ Loader(const DecodeArgs& a, uint32_t ring) : at(a), ring(ring) { enter(a); }

  __device__ void enter(const DecodeArgs& a) {
    tile = 0;
    tiles = at.done() ? 0 : max(0, at.tiles() - int(threadIdx.x) / 32 + kWarps - 1) / kWarps;
    look_up(a);
  }
  __device__ int position(int t) const {
    return at.start() + (t * kWarps + int(threadIdx.x) / 32) * kTileTokens;
  }
  __device__ void look_up(const DecodeArgs& a) {
    const int t = tile + int(threadIdx.x) % 32;
    if (t < tiles)
      blocks = a.table[int64_t(at.e.sequence) * a.table_stride + at.head * a.head_stride +
                       (position(t) >> a.block_shift)];
  }

  // Of this fragment, and without the newest token.
  __device__ bool next_is_old() const { return tile < tiles && position(tile) + kTileTokens < at.e.end; }

  // Starts the next tile's copies, if there is one; always ends a group, so that groups count tiles.
  __device__ void next(const DecodeArgs& a) {
    while (tile >= tiles && !at.done()) {
      at.advance(a);
      enter(a);
    }
    if (!at.done()) {
      copy_tile<width>(a, at.e, at.head, __shfl_sync(~0u, blocks, tile % 32), position(tile),
                       ring + uint32_t(slot * kStageBytes));
      if (++tile % 32 == 0) look_up(a);
    }
    ptx::copy_async_commit();
    slot = slot + 1 == stages ? 0 : slot + 1;
  }
};

// One warp's part of a fragment, for `columns` times 8 heads. A lane has the columns 2*(lane%4) and the next of
// each 8. Weights are multiplied by 2^lift, sums of them and of values too; what is divided in the end does not
// show it.
template <int width, int columns, int lift = 0>
struct Attend {
  using Layout = TileLayout<width>;
  static constexpr int kSteps = width / 16;

  uint32_t q[columns][kSteps][2];
  float o[columns][kSteps][4];                 // O^T: rows are elements of the head, columns are heads
  float highest[columns][2], sum[columns][2];  // base 2; the sum is this lane's share

  __device__ void load_q(const DecodeArgs& a, const Walk& w) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      const int head = n * 8 + lane / 4;
      const __nv_bfloat16* row =
          a.q + w.e.row * a.q_stride + (w.head * a.group + head) * a.head_dim + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const bool low = head < a.group;
        const bool high = head < a.group && (width > 16 || k * 16 + 8 < a.head_dim);
        q[n][k][0] = low ? *reinterpret_cast<const uint32_t*>(row + k * 16) : 0;
        q[n][k][1] = high ? *reinterpret_cast<const uint32_t*>(row + k * 16 + 8) : 0;
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) highest[n][j] = -INFINITY, sum[n][j] = 0;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][k][i] = 0;
    }
  }

  // Scores of 16 tokens from `first` on, as they come from the products, to weights; sums are brought to the
  // new maximum, and were multiplied by `shrink`. With more scores the tokens that follow, 16 for each four.
  template <int scores>
  __device__ __forceinline__ void weigh(const DecodeArgs& a, float (&x)[columns][scores],
                                        float (&shrink)[columns][2], int first, const DecodeEntry& e) {
    const int token = first + int(threadIdx.x) % 32 / 4;
    const bool whole = first >= e.begin && first + scores * 4 <= e.end;
    bool grew = false;
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int i = 0; i < scores; ++i) x[n][i] *= a.scale;
      if (a.softcap >
          0) {  // tanh(x) = 1 - 2 / (exp(2x) + 1); the card's own is off by 2^-11, too much times a cap of 50
#pragma unroll
        for (int i = 0; i < scores; ++i) x[n][i] = a.softcap * (1 - __fdividef(2.f, exp2f(x[n][i]) + 1));
      }
      if (!whole) {
#pragma unroll
        for (int i = 0; i < scores; ++i) {
          const int at = token + i / 2 * 8;
          x[n][i] = at >= e.begin && at < e.end ? x[n][i] : -INFINITY;
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = x[n][j];
#pragma unroll
        for (int i = j + 2; i < scores; i += 2) top = fmaxf(top, x[n][i]);
#pragma unroll
        for (int other = 4; other < 32; other *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
        top = fmaxf(top, highest[n][j]);  // finite: some token is visible
        shrink[n][j] = ptx::exp2_flushed(highest[n][j] - top);
        grew |= top != highest[n][j];
        highest[n][j] = top;
        const float base = lift == 0 ? top : top - lift;
        float added = 0;
#pragma unroll
        for (int i = j; i < scores; i += 2) {
          x[n][i] = ptx::exp2_flushed(x[n][i] - base);
          added += x[n][i];
        }
        sum[n][j] = sum[n][j] * shrink[n][j] + added;
      }
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int n = 0; n < columns; ++n)
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[n][k][i] *= shrink[n][i % 2];
    }
  }

  // The tile at `stage` (shared memory), whose first token is `first`. `shrink`: as of weigh.
  __device__ __forceinline__ void tile(const DecodeArgs& a, uint32_t stage, int first, const DecodeEntry& e,
                                       float (&shrink)[columns][2]) {
    const int lane = int(threadIdx.x) % 32;
    float s[columns][2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t keys[4];
      ptx::load_matrix_x4(keys, stage + uint32_t(Layout::offset(lane % 16, 2 * k + lane / 16)));
#pragma unroll
      for (int n = 0; n < columns; ++n) ptx::mma_16x8x16(s[n][k % 2], keys, q[n][k][0], q[n][k][1]);
    }
    float x[columns][4];
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = s[n][0][i] + s[n][1][i];
    weigh(a, x, shrink, first, e);
    uint32_t p[columns][2];
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      p[n][0] = ptx::transpose_8x8(ptx::pack_bf16(x[n][0], x[n][1]));
      p[n][1] = ptx::transpose_8x8(ptx::pack_bf16(x[n][2], x[n][3]));
    }
    const uint32_t values = stage + uint32_t(Layout::kBytes);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t v[4];
      ptx::load_matrix_x4_transposed(
          v, values + uint32_t(Layout::offset(lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2)));
#pragma unroll
      for (int n = 0; n < columns; ++n) ptx::mma_16x8x16(o[n][k], v, p[n][0], p[n][1]);
    }
  }
};

}  // namespace sluice::cuda
