// One row of logits spread over the blocks of a cluster, each holding its part in shared memory for the whole
// kernel; and what the warps of the cluster tell each other. Warp w of block b owns a run of consecutive ids:
// (block, warp) order is id order, so sums merged in that order are the sums that a draw walks along.
#pragma once

#include <cooperative_groups.h>

#include <cfloat>
#include <cstdint>

#include "tensor/cuda/ptx/bulk_copy.h"
#include "tensor/cuda/sampling/staged_row.h"

namespace sluice::cuda::sampling_kernel {

namespace cg = cooperative_groups;

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kMaxCluster = 16;
inline constexpr int kMaxEntries = kMaxCluster * kWarps;
inline constexpr int kBand = 128;        // candidates that are sorted rather than narrowed down further
inline constexpr int kHistogram = 1024;  // ids whose occurrences are counted at a time
inline constexpr int kLevels = 8;        // of a round of narrowing (select.h)
inline constexpr int kMaxRun = 4096;     // ids per warp: a bit per four of a lane's fits 32 bits
constexpr float kBelowAll = -__builtin_huge_valf();  // below every number; ids that do not exist or were cut

struct Levels {
  double mass[kLevels];
  uint32_t count[kLevels];
};

// Three blocks of 10 KB of this and two runs of 32 KB fit a multiprocessor.
struct Shared {
  uint64_t said[2][kMaxEntries];             // by the warps of the cluster, in exchanges
  Levels levels[2][kMaxCluster];             // by its blocks
  float warp_mass[kWarps][kLevels];          // of this block's warps
  uint32_t warp_count[kWarps][kLevels / 2];  // two in a word
  uint64_t loaded[2][kWarps];                // mbarriers, of either buffer
  union {                                    // histogram: only between exchanges
    struct {
      uint64_t gathered[kBand], sorted[kBand];
    };
    uint32_t histogram[kHistogram];
  };
};

// A thread's view.
struct Row {
  Shared* shared;
  float* x;   // this warp's run, [size]
  int begin;  // its first id
  int size;   // multiple of 128; ids past the vocabulary hold kBelowAll
  int count;  // how many of them exist
  int vocab;
  int rank, cluster;  // this block's place
  int warp, lane;
  int parity;  // which half of `said` and `levels` is next

  __device__ float4& quad(int j) const { return reinterpret_cast<float4*>(x)[j * 32 + lane]; }
  __device__ int quads() const { return size / 128; }  // per lane
  __device__ int id_of(int j) const { return begin + j * 128 + lane * 4; }
  __device__ int entry() const { return rank * kWarps + warp; }
  __device__ int entries() const { return cluster * kWarps; }
  // Entries that this lane reads: consecutive ones, so that lane order is id order.
  __device__ int entries_per_lane() const { return (entries() + 31) / 32; }
};

// ---- Values. All logits are finite after `finite`, and zero has one sign: they order as their keys do.
__device__ inline float finite(float x) { return fminf(fmaxf(x, -FLT_MAX), FLT_MAX) + 0.0f; }  // NaN: lowest
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
// Greater is earlier: larger logits first, lower ids among equals.
__device__ inline uint64_t composite(float x, int id) { return uint64_t(key_of(x)) << 32 | uint32_t(~id); }
__device__ inline float composite_value(uint64_t c) { return value_of(uint32_t(c >> 32)); }
__device__ inline int composite_id(uint64_t c) { return int(~uint32_t(c)); }

__device__ inline float weight_of(float x, float top, float scale) { return expf(__fmul_rn(x - top, scale)); }

// ---- Warps.
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
__device__ inline double inclusive_sum(double x, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double before = __shfl_up_sync(~0u, x, d);
    if (lane >= d) x += before;
  }
  return x;
}

// ---- The cluster. Every warp says `mine` (the same in all its lanes) to all; returns what all said, by entry.
// One barrier: the two halves alternate, and a block that is two exchanges ahead has passed a barrier that this
// one reached only after reading.
template <typename T>
__device__ const T* exchange(Row& r, const T& mine) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  T* here = reinterpret_cast<T*>(r.shared->said[r.parity]);
  r.parity ^= 1;
  if (r.lane < r.cluster) cg::this_cluster().map_shared_rank(here, r.lane)[r.entry()] = mine;
  cg::this_cluster().sync();
  return here;
}

__device__ inline double sum_of(const Row& r, const double* said) {
  const int per = r.entries_per_lane();
  double own = 0;
  for (int e = r.lane * per; e < min(r.lane * per + per, r.entries()); ++e) own += said[e];
  return warp_sum(own);
}

// ---- Passes over the run.
struct Best {
  uint32_t key;
  int32_t id;
};

__device__ inline Best warp_best(uint32_t key, int32_t id) {
  const uint32_t top = __reduce_max_sync(~0u, key);
  return {top, __reduce_min_sync(~0u, key == top ? id : INT32_MAX)};
}

__device__ inline Best best_of(const Row& r, const Best* said) {
  const int per = r.entries_per_lane();
  Best best{0, INT32_MAX};
  for (int e = r.lane * per; e < min(r.lane * per + per, r.entries()); ++e) {
    if (said[e].key > best.key) best = said[e];
  }
  return warp_best(best.key, best.id);
}

// Not inlined, like whatever else is large and called at several places: code that is cold in every step is paid
// for by the instruction.
__device__ __noinline__ float capped(float x, float softcap) {
  return finite(softcap > 0 ? softcap * tanhf(x / softcap) : x);
}

// The run's largest, of a row of which nothing else is wanted. Broken values never win; where there are no
// others the first id does.
__device__ inline Best find_best(const Row& r) {
  float best = kBelowAll;
  int at = -1;
#pragma unroll 4
  for (int j = 0; j < r.quads(); ++j) {
    const float4 v = r.quad(j);
    const float most = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    if (most > best) best = most, at = j;
  }
  int32_t id = INT32_MAX;
  if (at >= 0) {
    const float4 v = r.quad(at);
    id = r.id_of(at) + (v.x == best ? 0 : v.y == best ? 1 : v.z == best ? 2 : 3);
  } else if (r.lane == 0 && r.count > 0) {
    id = r.begin;
  }
  return warp_best(key_of(best), id);
}

// Cleans the run (and applies softcap, and the mask where there is one) and finds its largest.
__device__ inline Best clean_and_find(const Row& r, float softcap, const uint32_t* mask) {
  float best = kBelowAll;
  int32_t id = INT32_MAX;
#pragma unroll 2
  for (int j = 0; j < r.quads(); ++j) {
    const int first = r.id_of(j), left = r.begin + r.count - first;
    if (left <= 0) break;
    float4 quad = r.quad(j);
    float* v = &quad.x;
    const uint32_t allowed = mask ? mask[first / 32] >> (first % 32) : ~0u;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c >= left) continue;
      v[c] = softcap > 0 ? capped(v[c], softcap) : finite(v[c]);
      if (!(allowed >> c & 1)) v[c] = -FLT_MAX;
      if (v[c] > best) best = v[c], id = first + c;
    }
    r.quad(j) = quad;
  }
  __syncwarp();
  return warp_best(key_of(best), id);
}

// Sum of the weights of all that has not been cut off. In float within a lane (some tens of ids): those errors
// are random and even out over the lanes; conversions to double cost more than the exponentials.
__device__ inline double mass_of(const Row& r, float top, float scale) {
  float4 sum = {0, 0, 0, 0};
#pragma unroll 4
  for (int j = 0; j < r.quads(); ++j) {
    const float4 v = r.quad(j);
    sum.x += weight_of(v.x, top, scale);
    sum.y += weight_of(v.y, top, scale);
    sum.z += weight_of(v.z, top, scale);
    sum.w += weight_of(v.w, top, scale);
  }
  return warp_sum(double((sum.x + sum.y) + (sum.z + sum.w)));
}

}  // namespace sluice::cuda::sampling_kernel
