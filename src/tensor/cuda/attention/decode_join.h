// How the results of a CTA's warps, and of the CTAs that share a head, become one.
//
// A head that is cut over CTAs is joined by those that have its second to last piece, each a share of its
// columns (of four values), so that every thread has a load or two to wait for. Each writes its piece and reads
// the others' until they are there. What is "there" the values say themselves: scratch is all kAbsent between
// launches, no value written is, and the reader puts kAbsent back. So it costs one trip to the L2 and one from
// it, without a fence or an atomic. Waiting is safe: all CTAs are on the card at once, and none writes a piece
// later than it waits, except after a wait for pieces that are written before all else (plan.h: the order of
// segments).
//
// This runs once per CTA, with its instructions fetched from afar for the purpose, so it is kept short. Tried
// and lost, at 1 x 4096 (32 pieces) and 1 x 512 (8), of 32/8 heads of 128: the CTA that finds an atomic counter
// full joins all, 12.0 and 5.9 us; the same written out, 16 loads in flight per thread, 13.4 and 7.6; the last
// piece's CTA joins, polling, written out, 19.4 and 7.2; the same as a short loop, 11.3 and 5.1. By
// slices: 10.2 and 5.1, with eight warps a CTA 9.1 and 4.8.
#pragma once

#include "tensor/cuda/attention/decode_tile.h"
#include "tensor/cuda/ptx/relaxed.h"

namespace sluice::cuda {

// Where the warps of a CTA meet: [kWarps][group][kPitch] sums, [kWarps][columns * 8] (highest, sum).
template <int width, int columns>
struct Meeting {
  static constexpr int kWarps = warps_of(width);
  static constexpr int kPitch = width + 4;  // the lanes of a store lie in different banks
  float* sums;
  float2* softmax;

  static constexpr int kGathered = 6;  // floats of a column: its values, highest, sum
  // Of sums. It also has room for join_slice's columns: of two pieces all, of more no more than that, or one of
  // each.
  __host__ __device__ static int floats(int group) {
    return std::max(kWarps * group * kPitch, (kMostCtas + 1) * kGathered);
  }
  static size_t bytes(int group) {
    return sizeof(float) * size_t(floats(group)) + sizeof(float2) * size_t(kWarps * columns * 8);
  }
  __device__ Meeting(std::byte* memory, int group)
      : sums(reinterpret_cast<float*>(memory)), softmax(reinterpret_cast<float2*>(sums + floats(group))) {}

  __device__ float* row(const DecodeArgs& a, int warp, int head) const {
    return sums + (warp * a.group + head) * kPitch;
  }
  template <int lift>
  __device__ void put(const DecodeArgs& a, Attend<width, columns, lift>& w) {
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

constexpr uint32_t kAbsent = 0xffffffff;  // a NaN that no instruction makes

__device__ __forceinline__ float absent() { return __uint_as_float(kAbsent); }
__device__ __forceinline__ bool is_there(float x) { return __float_as_uint(x) != kAbsent; }
__device__ __forceinline__ float present(float x) { return is_there(x) ? x : __uint_as_float(0x7fffffff); }

__device__ __forceinline__ void store_row(const DecodeArgs& a, const Walk& w, int head, int d, float4 o) {
  if (d >= a.head_dim) return;
  __nv_bfloat16* to = a.out + w.e.row * a.out_stride + (w.head * a.group + head) * a.head_dim + d;
  *reinterpret_cast<uint2*>(to) = {ptx::pack_bf16(o.x, o.y), ptx::pack_bf16(o.z, o.w)};
}

// The warps' results at the meeting place, joined: stored as the head's row where `whole`, else as piece
// `slot`.
template <int width, int columns>
__device__ __forceinline__ void join_warps(const DecodeArgs& a, const Walk& w, bool whole, int64_t slot,
                                           const Meeting<width, columns>& meeting) {
  constexpr int kWarps = warps_of(width);
#pragma unroll 1
  for (int i = int(threadIdx.x); i < a.group * (width / 4); i += kWarps * 32) {
    const int head = i / (width / 4), d = i % (width / 4) * 4;
    float weight[kWarps], top = -INFINITY, sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) top = fmaxf(top, meeting.softmax[warp * columns * 8 + head].x);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float2 softmax = meeting.softmax[warp * columns * 8 + head];
      weight[warp] = softmax.x == -INFINITY ? 0 : exp2f(softmax.x - top);
      sum += weight[warp] * softmax.y;
    }
    float norm = 1;
    if (whole) norm = sum > 0 ? __fdividef(1.f, sum) : 0;  // nothing seen (padding): zeros
    float4 o = {0, 0, 0, 0};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float4 v = *reinterpret_cast<const float4*>(meeting.row(a, warp, head) + d);
      const float x = weight[warp] * norm;
      o.x += x * v.x, o.y += x * v.y, o.z += x * v.z, o.w += x * v.w;
    }
    if (whole) {
      store_row(a, w, head, d, o);
    } else {
      float4* piece = reinterpret_cast<float4*>(a.pieces + slot * a.group * (width / 4) + i);
      ptx::store_relaxed(piece, {present(o.x), present(o.y), present(o.z), present(o.w)});
      ptx::store_relaxed(piece + 1, {present(top), present(sum), 0, 0});
    }
  }
}

// A slice of a head's columns, joined over its pieces in the order of the context: CTA `first`'s and so on.
template <int width, int columns>
__device__ __forceinline__ void join_slice(const DecodeArgs& a, const Walk& w, int first, int pieces, int slice,
                                           const Meeting<width, columns>& meeting) {
  constexpr int kThreads = warps_of(width) * 32;
  const int all = a.group * (width / 4), each = (all + pieces - 2) / (pieces - 1), begin = slice * each;
  const int count = min(each, all - begin);
  if (count <= 0) return;
  float4* const values = reinterpret_cast<float4*>(meeting.sums);
  float2* const softmax = reinterpret_cast<float2*>(values + count * pieces);
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count * pieces; i += kThreads) {
    const int p = i / count;
    const int64_t slot = int64_t(first) + p + (p == pieces - 1 ? int64_t(gridDim.x) : 0);
    float4* const piece = reinterpret_cast<float4*>(a.pieces + slot * all + begin + i % count);
    float4 v, s;
    do {
      v = ptx::load_relaxed(piece);
      s = ptx::load_relaxed(piece + 1);
    } while (!(is_there(v.x) & is_there(v.y) & is_there(v.z) & is_there(v.w) & is_there(s.x) & is_there(s.y)));
    const float4 nothing = {absent(), absent(), absent(), absent()};
    ptx::store_relaxed(piece, nothing);
    ptx::store_relaxed(piece + 1, nothing);
    values[i] = v;
    softmax[i] = {s.x, s.y};
  }
  __syncthreads();
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += kThreads) {
    float top = -INFINITY, sum = 0;
    for (int p = 0; p < pieces; ++p) top = fmaxf(top, softmax[p * count + i].x);
    float4 o = {0, 0, 0, 0};
#pragma unroll 4
    for (int p = 0; p < pieces; ++p) {
      const float2 s = softmax[p * count + i];
      const float4 v = values[p * count + i];
      const float x = exp2f(s.x - top);
      sum += x * s.y;
      o.x += x * v.x, o.y += x * v.y, o.z += x * v.z, o.w += x * v.w;
    }
    const float norm = __fdividef(1.f, sum);
    const int at = begin + i;
    store_row(a, w, at / (width / 4), at % (width / 4) * 4, {o.x * norm, o.y * norm, o.z * norm, o.w * norm});
  }
}

// After put() and a __syncthreads(): stores a head's rows, or this CTA's piece of them and its slice of the
// whole.
template <int width, int columns>
__device__ __forceinline__ void finish(const DecodeArgs& a, const Walk& w, int quota,
                                       const Meeting<width, columns>& meeting) {
  const bool ends = w.chunk + w.chunks() == w.e.chunks, whole = ends && w.chunk == 0;
  join_warps(a, w, whole, int64_t(blockIdx.x) + (ends ? int64_t(gridDim.x) : 0), meeting);
  __syncthreads();  // the meeting place is free again
  if (w.chunk == 0) return;
  const int start = w.e.first * a.kv_heads + w.head * w.e.chunks, first = start / quota;
  const int pieces = (start + w.e.chunks - 1) / quota - first + 1;
  join_slice(a, w, first, pieces, int(blockIdx.x) - first - 1, meeting);
  __syncthreads();
}

}  // namespace sluice::cuda
