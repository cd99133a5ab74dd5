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
inline constexpr int kBand = 128;         // candidates that are sorted rather than narrowed down further
inline constexpr int kHistogram = 2048;   // ids whose occurrences are counted at a time
inline constexpr int kMessageBytes = 48;  // largest T of exchange
constexpr float kBelowAll =
    -__builtin_huge_valf();  // below every number; ids that do not exist or were cut off

struct Shared {
  alignas(16) char messages[2][kMaxEntries * kMessageBytes];
  uint64_t gathered[kBand];
  uint64_t sorted[kBand];
  uint64_t loaded[kWarps];  // mbarriers
  uint32_t histogram[kHistogram];
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
  int parity = 0;  // which half of `messages` is next

  __device__ float4* quads() const { return reinterpret_cast<float4*>(x); }
  __device__ int quad_count() const { return size / 128; }  // per lane; quad j of a lane begins at id_of(j)
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

__device__ inline float weight_of(float x, float max, float scale) { return expf(__fmul_rn(x - max, scale)); }

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
// One barrier: the two halves of `messages` alternate, and a block that is two exchanges ahead has passed a
// barrier that this one reached only after reading.
template <typename T>
__device__ const T* exchange(Row& r, const T& mine) {
  static_assert(sizeof(T) <= kMessageBytes && kMessageBytes % alignof(T) == 0);
  T* here = reinterpret_cast<T*>(r.shared->messages[r.parity]);
  r.parity ^= 1;
  if (r.lane < r.cluster) cg::this_cluster().map_shared_rank(here, r.lane)[r.entry()] = mine;
  __syncwarp();
  cg::this_cluster().sync();
  return here;
}

struct Place {
  int entry;
  double left;  // weight left over in it
};

// Where `share` of the sum of `mass` falls, walking along the entries: the same in every thread.
__device__ inline Place find_place(const Row& r, const double* mass, double share) {
  const int per = r.entries_per_lane(), first = r.lane * per, last = min(first + per, r.entries());
  double own = 0;
  for (int e = first; e < last; ++e) own += mass[e];
  const double upto = inclusive_sum(own, r.lane);
  const double wanted = share * __shfl_sync(~0u, upto, 31);
  const unsigned past = __ballot_sync(~0u, upto > wanted), some = __ballot_sync(~0u, own > 0);
  const int owner = past ? __ffs(past) - 1 : some ? 31 - __clz(some) : 0;
  const double before = __shfl_up_sync(~0u, upto, 1);
  Place place{0, 0};
  if (r.lane == owner) {
    double left = wanted - (r.lane > 0 ? before : 0);
    for (int e = first; e < last; ++e) {
      if (!(mass[e] > 0)) continue;
      place = {e, left};
      left -= mass[e];
      if (left < 0) break;
    }
  }
  return {__shfl_sync(~0u, place.entry, owner), __shfl_sync(~0u, place.left, owner)};
}

// The id at weight `left` in this warp's run; -1 where nothing in it has weight. First the lane whose ids it is
// among, then the warp looks at that lane's ids together.
__device__ inline int find_id(const Row& r, float max, float scale, double left) {
  const int per = r.size / 32;
  const float* x = r.x + r.lane * per;
  double own = 0;
  for (int i = 0, at = r.lane % per; i < per; ++i) {  // begins elsewhere in each lane: no bank conflicts
    own += weight_of(x[at], max, scale);
    at = at + 1 < per ? at + 1 : 0;
  }
  double upto = inclusive_sum(own, r.lane);
  unsigned past = __ballot_sync(~0u, upto > left), some = __ballot_sync(~0u, own > 0);
  if (!some) return -1;
  // Rounding may leave a little over at the end: then the last possible id is taken.
  const int owner = past ? __ffs(past) - 1 : 31 - __clz(some);
  const double before = __shfl_up_sync(~0u, upto, 1);
  left -= __shfl_sync(~0u, r.lane > 0 ? before : 0.0, owner);
  int chosen = -1;
  for (int i = 0; i < per; i += 32) {
    const double w = i + r.lane < per ? weight_of(r.x[owner * per + i + r.lane], max, scale) : 0;
    upto = inclusive_sum(w, r.lane);
    past = __ballot_sync(~0u, upto > left && w > 0);
    some = __ballot_sync(~0u, w > 0);
    if (some) chosen = r.begin + owner * per + i + (past ? __ffs(past) - 1 : 31 - __clz(some));
    if (past) break;
    left -= __shfl_sync(~0u, upto, 31);
  }
  return chosen;
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

// The run from global memory. `aligned`: row and vocabulary are multiples of 16 bytes.
__device__ inline void load(const Row& r, const float* row, bool aligned) {
  uint64_t* loaded = &r.shared->loaded[r.warp];
  if (aligned && r.count > 0) {
    if (r.lane == 0) {
      ptx::barrier_expect_bytes(loaded, uint32_t(r.count) * 4);
      ptx::copy_bulk(r.x, row + r.begin, uint32_t(r.count) * 4, loaded);
    }
  } else {
    for (int i = r.lane; i < r.count; i += 32) r.x[i] = row[r.begin + i];
  }
  for (int i = r.count + r.lane; i < r.size; i += 32) r.x[i] = kBelowAll;
  if (aligned && r.count > 0) ptx::barrier_wait(loaded, 0);
  __syncwarp();
}

__device__ inline float capped(float x, float softcap) {
  return finite(softcap > 0 ? softcap * tanhf(x / softcap) : x);
}

// Cleans the run (and applies softcap, and the mask where there is one) and finds its largest.
__device__ inline Best clean_and_find(const Row& r, float softcap, const uint32_t* mask, bool keep) {
  float best = kBelowAll;
  int32_t id = INT32_MAX;
#pragma unroll 4
  for (int j = 0; j < r.quad_count(); ++j) {
    const int first = r.id_of(j);
    if (first >= r.begin + r.count) break;
    float4 quad = r.quads()[j * 32 + r.lane];
    float* v = &quad.x;
    const uint32_t allowed = mask ? mask[first / 32] >> (first % 32) : ~0u;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first + c >= r.begin + r.count) continue;
      v[c] = capped(v[c], softcap);
      if (!(allowed >> c & 1)) v[c] = -FLT_MAX;
      if (v[c] > best) best = v[c], id = first + c;
    }
    if (keep) r.quads()[j * 32 + r.lane] = quad;
  }
  __syncwarp();
  return warp_best(key_of(best), id);
}

// Sum of the weights of all that has not been cut off.
__device__ inline double mass_of(const Row& r, float max, float scale) {
  double sum = 0;
#pragma unroll 4
  for (int j = 0; j < r.quad_count(); ++j) {
    const float4 v = r.quads()[j * 32 + r.lane];
    sum += weight_of(v.x, max, scale) + weight_of(v.y, max, scale) + weight_of(v.z, max, scale) +
           weight_of(v.w, max, scale);
  }
  return warp_sum(sum);
}

__device__ inline double sum_of(const Row& r, const double* said) {
  const int per = r.entries_per_lane();
  double own = 0;
  for (int e = r.lane * per; e < min(r.lane * per + per, r.entries()); ++e) own += said[e];
  return warp_sum(own);
}

}  // namespace sluice::cuda::sampling_kernel
