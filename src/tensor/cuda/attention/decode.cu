// Split-KV decode for the memory's limit.
//
// Each CTA of a persistent grid walks its share of the plan: fragments, a fragment being consecutive chunks of
// one kv head of one sequence. Its warps take tiles of 16 tokens in turn, each with a ring of its own in shared
// memory that it fills by cp.async, STAGES - 1 tiles ahead and across the ends of fragments, so that neither
// the softmax nor the joining of warps ever lets the memory idle.
//
// A tile is S^T = K · Q^T, then O^T += V^T · P^T: keys and values are the 16-row operand, the group's heads the
// 8 columns, so of a group of 4 only half of the tensor cores' work is waste (of Q · K^T it would be three
// quarters). S^T becomes the operand P^T by two 8x8 transpositions within the warp.
//
// Warps of a CTA are joined through shared memory. Pieces of one head in several CTAs are joined by the CTA
// that finishes last, in the order of the context, so that the result does not depend on who was last.
#include <cuda_bf16.h>

#include <cmath>

#include "base/check.h"
#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/copy_async.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kTileTokens = 16;
constexpr int kWarps = 4;
constexpr float kLog2E = 1.44269504f;

struct DecodeArgs {
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  const std::byte* keys;  // of the layer, in block 0
  const int32_t* table;
  const DecodeEntry* entries;
  const DecodeShare* shares;
  DecodeScratch scratch;
  int64_t q_stride, out_stride;  // elements
  int64_t block_bytes;
  int value_bytes, head_bytes;  // from keys to values, from head to head
  int table_stride, block_shift;
  int kv_heads, group, head_dim;
  float scale;        // of q·k, base 2 folded in (without a soft cap)
  float softcap;      // base 2 folded in; 0: none
  float inner_scale;  // 2 * log2(e) * scale / softcap
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

// Where a CTA is in its share: at a fragment.
struct Walk {
  int entry, head, chunk, left;
  bool cut;  // the fragment is the share's cut head, and the rest is still to come
  DecodeEntry e;

  __device__ explicit Walk(const DecodeShare& s) {
    cut = s.cut_count > 0;
    if (cut)
      entry = s.cut_entry, head = s.cut_head, chunk = 0, left = s.cut_count, e = s.cut;
    else
      begin(s);
  }
  __device__ void begin(const DecodeShare& s) {
    cut = false;
    entry = s.entry, head = s.head, chunk = s.chunk, left = s.count, e = s.first;
  }
  __device__ bool done() const { return left <= 0; }
  __device__ int chunks() const { return min(left, e.chunks - chunk); }  // of this fragment
  __device__ int start() const { return e.begin / kTileTokens * kTileTokens + chunk * kDecodeChunk; }
  __device__ int tiles() const {
    return (min(e.end, start() + chunks() * kDecodeChunk) - start() + kTileTokens - 1) / kTileTokens;
  }
  __device__ void advance(const DecodeArgs& a) {
    if (cut) return begin(a.shares[blockIdx.x]);
    left -= chunks();
    chunk = 0;
    if (++head == a.kv_heads) {
      head = 0;
      ++entry;
      if (left > 0) e = a.entries[entry];
    }
  }
};

// A warp's stream of loads: its tiles of all fragments, in order.
template <int width, int stages>
struct Loader {
  using Layout = TileLayout<width>;
  static constexpr int kStageBytes = 2 * Layout::kBytes;
  static constexpr int kCopies = (kTileTokens * Layout::kPieces + 31) / 32;

  Walk at;
  int tile = 0, tiles = 0;  // of this warp's in this fragment
  int32_t blocks = 0;       // lane i: the block of the warp's tile (tile rounded down to 32) + i
  uint32_t ring;            // this warp's
  int slot = 0;

  __device__ Loader(const DecodeArgs& a, const DecodeShare& share, uint32_t ring) : at(share), ring(ring) {
    enter(a);
  }

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
    if (t < tiles) blocks = a.table[int64_t(at.e.sequence) * a.table_stride + (position(t) >> a.block_shift)];
  }

  // Starts the next tile's copies, if there is one; always ends a group, so that groups count tiles.
  __device__ void next(const DecodeArgs& a) {
    while (tile >= tiles && !at.done()) {
      at.advance(a);
      enter(a);
    }
    if (!at.done()) {
      copy_tile(a, __shfl_sync(~0u, blocks, tile % 32), position(tile));
      if (++tile % 32 == 0) look_up(a);
    }
    ptx::copy_async_commit();
    slot = slot + 1 == stages ? 0 : slot + 1;
  }

  __device__ void copy_tile(const DecodeArgs& a, int32_t block, int first) const {
    const int lane = int(threadIdx.x) % 32;
    const int inside = first & ((1 << a.block_shift) - 1);
    const int row_bytes = a.head_dim * 2;
    const std::byte* from = a.keys + block * a.block_bytes + at.head * a.head_bytes + inside * row_bytes;
    const uint32_t to = ring + uint32_t(slot * kStageBytes);
    // A block that is not there is never read; nor are rows outside of what the row sees, which may hold
    // anything.
    const int low = at.e.begin - first, high = block < 0 ? 0 : at.e.end - first;
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
};

// One warp's part of a fragment, for `columns` times 8 heads. A lane has the columns 2*(lane%4) and the next of
// each 8.
template <int width, int columns>
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

  __device__ static float score(const DecodeArgs& a, float dot) {
    if (a.softcap == 0) return dot * a.scale;
    // tanh(x) = 1 - 2 / (exp(2x) + 1); the card's own tanh is off by 2^-11, too much times a cap of 50
    return a.softcap * (1 - __fdividef(2.f, exp2f(dot * a.inner_scale) + 1));
  }

  // The tile at `stage`, whose first token is at `low` relative to the first visible one, and `high` to the
  // end.
  __device__ void tile(const DecodeArgs& a, uint32_t stage, int first, const DecodeEntry& e) {
    const int lane = int(threadIdx.x) % 32;
    float s[columns][2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t keys[4];
      ptx::load_matrix_x4(keys, stage + uint32_t(Layout::offset(lane % 16, 2 * k + lane / 16)));
#pragma unroll
      for (int n = 0; n < columns; ++n) ptx::mma_16x8x16(s[n][k % 2], keys, q[n][k][0], q[n][k][1]);
    }
    const int token = first + lane / 4;
    const bool sees[2] = {token >= e.begin && token < e.end, token + 8 >= e.begin && token + 8 < e.end};
    uint32_t p[columns][2];
    bool grew = false;
    float shrink[columns][2];
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = sees[i / 2] ? score(a, s[n][0][i] + s[n][1][i]) : -INFINITY;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(x[j], x[j + 2]);
#pragma unroll
        for (int other = 4; other < 32; other *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
        top = fmaxf(top, highest[n][j]);  // finite: every tile has a visible token
        shrink[n][j] = exp2f(highest[n][j] - top);
        grew |= top != highest[n][j];
        highest[n][j] = top;
        x[j] = exp2f(x[j] - top);
        x[j + 2] = exp2f(x[j + 2] - top);
        sum[n][j] = sum[n][j] * shrink[n][j] + x[j] + x[j + 2];
      }
      p[n][0] = ptx::transpose_8x8(ptx::pack_bf16(x[0], x[1]));
      p[n][1] = ptx::transpose_8x8(ptx::pack_bf16(x[2], x[3]));
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int n = 0; n < columns; ++n)
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[n][k][i] *= shrink[n][i % 2];
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

// Where the warps of a CTA meet: [kWarps][group][kPitch] sums, [kWarps][columns * 8] (highest, sum).
template <int width, int columns>
struct Meeting {
  static constexpr int kPitch = width + 4;  // the lanes of a store lie in different banks
  float* sums;
  float2* softmax;

  static size_t bytes(int group) {
    return sizeof(float) * size_t(kWarps * group * kPitch) + sizeof(float2) * size_t(kWarps * columns * 8);
  }
  __device__ Meeting(std::byte* memory, int group)
      : sums(reinterpret_cast<float*>(memory)),
        softmax(reinterpret_cast<float2*>(sums + kWarps * group * kPitch)) {}

  __device__ float* row(const DecodeArgs& a, int warp, int head) const {
    return sums + (warp * a.group + head) * kPitch;
  }
  __device__ void put(const DecodeArgs& a, Attend<width, columns>& w) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int head = n * 8 + lane % 4 * 2 + j;
        float sum = w.sum[n][j];
#pragma unroll
        for (int other = 4; other < 32; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (lane < 4) softmax[warp * columns * 8 + head] = {w.highest[n][j], sum};
        if (head >= a.group) continue;
        float* to = row(a, warp, head) + lane / 4;
#pragma unroll
        for (int k = 0; k < Attend<width, columns>::kSteps; ++k) {
          to[k * 16] = w.o[n][k][j];
          to[k * 16 + 8] = w.o[n][k][j + 2];
        }
      }
    }
  }
};

struct Joined {
  float highest = -INFINITY, sum = 0;
  float4 o = {0, 0, 0, 0};

  __device__ void scale_to(float top) {
    const float shrink = highest == -INFINITY ? 0 : exp2f(highest - top);
    sum *= shrink, o.x *= shrink, o.y *= shrink, o.z *= shrink, o.w *= shrink;
    highest = top;
  }
  __device__ void add(float2 softmax, float4 v) {  // after scale_to what is at least softmax.x
    const float w = softmax.x == -INFINITY ? 0 : exp2f(softmax.x - highest);
    sum += w * softmax.y;
    o.x += w * v.x, o.y += w * v.y, o.z += w * v.z, o.w += w * v.w;
  }
};

__device__ void store_row(const DecodeArgs& a, const Walk& w, int head, int d, const Joined& x) {
  const float norm = x.sum > 0 ? 1 / x.sum : 0;  // nothing seen (padding): zeros
  __nv_bfloat16* to = a.out + w.e.row * a.out_stride + (w.head * a.group + head) * a.head_dim + d;
  *reinterpret_cast<uint2*>(to) = {ptx::pack_bf16(x.o.x * norm, x.o.y * norm),
                                   ptx::pack_bf16(x.o.z * norm, x.o.w * norm)};
}

// The warps' results at the meeting place, joined: `use(head, d, joined)` for every four values of a head.
template <int width, int columns, typename Use>
__device__ void join_warps(const DecodeArgs& a, const Meeting<width, columns>& meeting, const Use& use) {
  for (int i = int(threadIdx.x); i < a.group * (width / 4); i += kWarps * 32) {
    const int head = i / (width / 4), d = i % (width / 4) * 4;
    float2 softmax[kWarps];
    float top = -INFINITY;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      softmax[warp] = meeting.softmax[warp * columns * 8 + head];
      top = fmaxf(top, softmax[warp].x);
    }
    Joined all;
    all.highest = top;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      all.add(softmax[warp], *reinterpret_cast<const float4*>(meeting.row(a, warp, head) + d));
    use(head, d, all);
  }
}

// All pieces of a head, brought to the meeting place: each warp joins every kWarps-th, in the order of the
// context. Many loads are in flight together, since nothing hides their latency when one long context is all
// there is.
template <int width, int columns>
__device__ void collect_pieces(const DecodeArgs& a, int first, int pieces, int first_slot,
                               Meeting<width, columns>& meeting) {
  constexpr int kTogether = 4, kColumns = 4;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int ends = a.group * (width / 4);
  for (int i = lane; i < ends; i += 32 * kColumns) {
    Joined all[kColumns];
    for (int p = warp; p < pieces; p += kWarps * kTogether) {
      float2 softmax[kTogether][kColumns];
      float4 o[kTogether][kColumns];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int piece = p + j * kWarps;
        const int64_t slot = int64_t(piece == 0 ? first_slot : 2 * (first + piece)) * a.group;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int at = i + 32 * c;
          const bool there = piece < pieces && at < ends;
          softmax[j][c] = there ? __ldcg(a.scratch.softmax + slot + at / (width / 4)) : float2{-INFINITY, 0};
          o[j][c] = there ? __ldcg(reinterpret_cast<const float4*>(a.scratch.sums + slot * width) + at)
                          : float4{0, 0, 0, 0};
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float top = all[c].highest;
#pragma unroll
        for (int j = 0; j < kTogether; ++j) top = fmaxf(top, softmax[j][c].x);
        all[c].scale_to(top);
#pragma unroll
        for (int j = 0; j < kTogether; ++j) all[c].add(softmax[j][c], o[j][c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int at = i + 32 * c, head = at / (width / 4), d = at % (width / 4) * 4;
      if (at >= ends) break;
      *reinterpret_cast<float4*>(meeting.row(a, warp, head) + d) = all[c].o;
      if (d == 0) meeting.softmax[warp * columns * 8 + head] = {all[c].highest, all[c].sum};
    }
  }
}

// After a __syncthreads() that follows put(): joins the warps; of a head that is cut, adds this piece to the
// others.
template <int width, int columns>
__device__ void finish(const DecodeArgs& a, const Walk& w, int quota, Meeting<width, columns>& meeting) {
  const auto store = [&](int head, int d, const Joined& x) {
    if (d < a.head_dim) store_row(a, w, head, d, x);
  };
  const int start = w.e.first * a.kv_heads + w.head * w.e.chunks,
            stop = start + w.e.chunks;  // on the plan's line
  const int first = start / quota, pieces = (stop - 1) / quota - first + 1;
  if (pieces == 1) {
    join_warps(a, meeting, store);
    __syncthreads();  // the meeting place is free again
    return;
  }
  // Slots: a CTA's share begins with one piece, and ends with another.
  const int64_t slot = 2 * int64_t(blockIdx.x) + ((start + w.chunk) % quota == 0 ? 0 : 1);
  join_warps(a, meeting, [&](int head, int d, const Joined& x) {
    const int64_t at = slot * a.group + head;
    if (d == 0) a.scratch.softmax[at] = {x.highest, x.sum};
    *reinterpret_cast<float4*>(a.scratch.sums + at * width + d) = x.o;
  });
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* ticket = a.scratch.tickets + w.entry * a.kv_heads + w.head;
    last = atomicAdd(ticket, 1) == pieces - 1;
    if (last) *ticket = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  collect_pieces(a, first, pieces, 2 * first + (start % quota == 0 ? 0 : 1), meeting);
  __syncthreads();
  join_warps(a, meeting, store);
  __syncthreads();
}

template <int width, int columns, int stages>
__global__ void __launch_bounds__(kWarps * 32) decode_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) std::byte memory[];
  constexpr int kRingBytes = stages * Loader<width, stages>::kStageBytes;
  let_next_start();
  wait_for_previous();

  const DecodeShare share = a.shares[blockIdx.x];
  if (share.count == 0) return;
  const uint32_t ring = ptx::shared_address(memory) + threadIdx.x / 32 * kRingBytes;
  Meeting<width, columns> meeting(memory + kWarps * kRingBytes, a.group);
  Loader<width, stages> loader(a, share, ring);
  Walk walk(share);
  Attend<width, columns> attend;
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) loader.next(a);
  attend.load_q(a, walk);

  int slot = 0;
  while (true) {
    attend.clear();
    const int tiles = walk.tiles();
    for (int t = int(threadIdx.x) / 32; t < tiles; t += kWarps) {
      ptx::copy_async_wait<stages - 2>();
      __syncwarp();  // the tile is there for all lanes; and all lanes are done with the one before, whose place
                     // is refilled
      loader.next(a);
      attend.tile(a, ring + uint32_t(slot * Loader<width, stages>::kStageBytes), walk.start() + t * kTileTokens,
                  walk.e);
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
    meeting.put(a, attend);
    Walk next = walk;
    next.advance(a);
    if (!next.done()) attend.load_q(a, next);
    __syncthreads();
    finish(a, walk, share.quota, meeting);
    if (next.done()) return;
    walk = next;
  }
}

using Kernel = void (*)(DecodeArgs);
struct Choice {
  Kernel kernel;
  size_t shared_bytes;
  int width;
};

// `stages` as many as leave room for two CTAs on a multiprocessor (for one at width 256), up to 4.
template <int width, int stages>
Choice choose(int group) {
  constexpr int kWide = width == 256 ? 2 : stages;  // for more than 8 heads; the meeting place needs the room
  constexpr size_t kStage = size_t(kWarps) * Loader<width, stages>::kStageBytes;
  if (group <= 8)
    return {decode_kernel<width, 1, stages>, kStage * stages + Meeting<width, 1>::bytes(group), width};
  return {decode_kernel<width, 2, kWide>, kStage * kWide + Meeting<width, 2>::bytes(group), width};
}

Choice choose(const KvGeometry& geometry, int heads) {
  const int group = heads / geometry.kv_heads;
  switch (geometry.head_dim) {
    case 8:
    case 16:
      return choose<16, 4>(group);
    case 32:
      return choose<32, 4>(group);
    case 64:
      return choose<64, 4>(group);
    case 80:
      return choose<80, 4>(group);
    case 96:
      return choose<96, 3>(group);
    case 128:
      return choose<128, 3>(group);
    case 256:
      return choose<256, 3>(group);
  }
  return {nullptr, 0, 0};
}

int log2_of(int n) {
  int shift = 0;
  while ((1 << shift) < n) ++shift;
  return shift;
}

}  // namespace

bool decode_supports(const KvGeometry& g, int heads) {
  return g.kv_heads > 0 && heads % g.kv_heads == 0 && heads / g.kv_heads <= 16 &&
         (g.block_tokens == 16 || g.block_tokens == 32 || g.block_tokens == 64) &&
         choose(g, heads).kernel != nullptr;
}

int decode_prepare(const Context& context, const KvGeometry& geometry, int heads) {
  CHECK(decode_supports(geometry, heads), "no decode kernel for these heads");
  const Choice choice = choose(geometry, heads);
  CUDA_CHECK(cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  int(choice.shared_bytes)));
  int per_multiprocessor = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, choice.kernel, kWarps * 32,
                                                           choice.shared_bytes));
  CHECK(per_multiprocessor > 0, "the decode kernel does not fit a multiprocessor");
  return context.multiprocessors * std::min(per_multiprocessor, 3);
}

size_t decode_scratch_pairs(const KvGeometry& geometry, int heads, int ctas) {
  return size_t(2 * ctas) * size_t(heads / geometry.kv_heads);
}
size_t decode_scratch_floats(const KvGeometry& geometry, int heads, int ctas) {
  return decode_scratch_pairs(geometry, heads, ctas) * size_t(choose(geometry, heads).width);
}

void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan,
            const DecodeScratch& scratch) {
  const KvGeometry& g = args.geometry;
  const Choice choice = choose(g, args.heads);
  const KvRows rows(g);
  const int64_t row_bytes = int64_t(g.head_dim) * 2;
  CHECK(choice.kernel && args.q.dtype == DType::bf16 && args.out.dtype == DType::bf16);
  CHECK(plan.window == args.window && args.out.stride % 4 == 0 && args.q.stride % 2 == 0);
  DecodeArgs a{};
  a.q = static_cast<const __nv_bfloat16*>(args.q.data);
  a.out = static_cast<__nv_bfloat16*>(args.out.data);
  a.keys = args.kv.pool + rows.layer_row(args.kv.layer_in_group) * row_bytes;
  a.table = args.batch.tables[args.kv.group];
  a.entries = plan.entries;
  a.shares = plan.shares;
  a.scratch = scratch;
  a.q_stride = args.q.stride;
  a.out_stride = args.out.stride;
  a.block_bytes = int64_t(args.kv.block_bytes);
  a.value_bytes = int(rows.value_rows() * row_bytes);
  a.head_bytes = int(g.block_tokens * row_bytes);
  a.table_stride = args.batch.table_stride;
  a.block_shift = log2_of(g.block_tokens);
  a.kv_heads = g.kv_heads;
  a.group = args.heads / g.kv_heads;
  a.head_dim = g.head_dim;
  a.scale = args.scale * kLog2E;
  a.softcap = args.softcap * kLog2E;
  a.inner_scale = args.softcap > 0 ? 2 * kLog2E * args.scale / args.softcap : 0;
  launch(context, choice.kernel, dim3(unsigned(plan.ctas)), dim3(kWarps * 32), choice.shared_bytes, a);
}

}  // namespace sluice::cuda
