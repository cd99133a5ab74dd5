// How the results of a CTA's warps, and of the CTAs that share a head, become one.
//
// A head that is cut over CTAs is joined by the one that has its end. The others write their piece and go on;
// the joiner reads each until it is there. What is "there" the values say themselves: scratch is all kAbsent
// between launches, no value written is, and the joiner puts kAbsent back. So a piece costs one trip to the L2
// and one from it, without a fence or an atomic (a counter that the last to come found full cost 2.8 to 4.5 us
// at 8 pieces instead of about 1). Waiting is safe: it is only ever for CTAs of lower index, and for a piece
// that those compute before all else.
#pragma once

#include "tensor/cuda/attention/decode_tile.h"

namespace sluice::cuda {

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

constexpr uint32_t kAbsent = 0xffffffff;  // a NaN that no instruction makes

__device__ __forceinline__ float present(float x) {
  return __float_as_uint(x) == kAbsent ? __uint_as_float(0x7fffffff) : x;
}
__device__ __forceinline__ bool is_there(float x) { return __float_as_uint(x) != kAbsent; }

// The pieces of CTAs [first, first + pieces), added to the warps' results at the meeting place: each warp adds
// every kWarps-th to its own, in the order of the context. Many loads are in flight together, since nothing
// hides their latency when one long context is all there is.
template <int width, int columns>
__device__ void collect_pieces(const DecodeArgs& a, int first, int pieces, Meeting<width, columns>& meeting) {
  constexpr int kTogether = width > 64 ? 4 : 2, kColumns = 4;  // as many as there are registers for
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int ends = a.group * (width / 4);
  for (int i = 0; i < ends; i += 32 * kColumns) {
    Joined all[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int at = i + lane + 32 * c, head = at / (width / 4), d = at % (width / 4) * 4;
      if (at >= ends) break;
      const float2 softmax = meeting.softmax[warp * columns * 8 + head];
      all[c] = {softmax.x, softmax.y, *reinterpret_cast<const float4*>(meeting.row(a, warp, head) + d)};
    }
    for (int p = warp; p < pieces; p += kWarps * kTogether) {
      float2 softmax[kTogether][kColumns];
      float4 o[kTogether][kColumns];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int64_t slot = int64_t(first + p + j * kWarps) * a.group;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int at = i + lane + 32 * c;
            softmax[j][c] = {-INFINITY, 0};
            o[j][c] = {0, 0, 0, 0};
            if (p + j * kWarps >= pieces || at >= ends) continue;
            const float2 s = softmax[j][c] = __ldcv(a.scratch.softmax + slot + at / (width / 4));
            const float4 v = o[j][c] =
                __ldcv(reinterpret_cast<const float4*>(a.scratch.sums + slot * width) + at);
            there &= is_there(s.x) && is_there(s.y) && is_there(v.x) && is_there(v.y) && is_there(v.z) &&
                     is_there(v.w);
          }
        }
      } while (!__all_sync(~0u, there));
      const float absent = __uint_as_float(kAbsent);
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int at = i + lane + 32 * c;
          if (p + j * kWarps < pieces && at < ends)
            reinterpret_cast<float4*>(a.scratch.sums + int64_t(first + p + j * kWarps) * a.group *
                                                           width)[at] = {absent, absent, absent, absent};
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
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int at = i + lane + 32 * c, head = at / (width / 4), d = at % (width / 4) * 4;
      if (at >= ends) break;
      *reinterpret_cast<float4*>(meeting.row(a, warp, head) + d) = all[c].o;
      // of a head that the next round still needs, nothing may change: all lanes' tops are the same, so are the
      // sums
      if (d == width - 4) meeting.softmax[warp * columns * 8 + head] = {all[c].highest, all[c].sum};
    }
    __syncwarp();
  }
}

// After put() and a __syncthreads(): stores a head's rows, or this CTA's piece of them.
template <int width, int columns>
__device__ void finish(const DecodeArgs& a, const Walk& w, int quota, Meeting<width, columns>& meeting) {
  if (w.chunk + w.chunks() < w.e.chunks) {  // not its end: a later CTA joins
    join_warps(a, meeting, [&](int head, int d, const Joined& x) {
      const int64_t at = int64_t(blockIdx.x) * a.group + head;
      *reinterpret_cast<float4*>(a.scratch.sums + at * width + d) = {present(x.o.x), present(x.o.y),
                                                                     present(x.o.z), present(x.o.w)};
      if (d == 0) a.scratch.softmax[at] = {present(x.highest), present(x.sum)};
    });
    __syncthreads();  // the meeting place is free again
    return;
  }
  const int first = (w.e.first * a.kv_heads + w.head * w.e.chunks) / quota, pieces = int(blockIdx.x) - first;
  if (w.chunk > 0) {
    collect_pieces(a, first, pieces, meeting);
    __syncthreads();
    for (int i = int(threadIdx.x); i < pieces * a.group; i += kWarps * 32)
      a.scratch.softmax[int64_t(first) * a.group + i] = {__uint_as_float(kAbsent), __uint_as_float(kAbsent)};
  }
  join_warps(a, meeting, [&](int head, int d, const Joined& x) {
    if (d < a.head_dim) store_row(a, w, head, d, x);
  });
  __syncthreads();
}

}  // namespace sluice::cuda
