// top_k, top_p and the list of the likeliest, without sorting the vocabulary: thresholds narrow down a band of
// logits that holds the cut, eight parts at a time, until the band's ids are few enough to be sorted.
#pragma once

#include "tensor/cuda/sampling/segment.h"

namespace sluice::cuda::sampling_kernel {

struct Goal {
  float floor;            // nothing below is looked at
  uint32_t count = 0;     // ids wanted; 0: by mass
  float share = 0;        // of the mass at or above floor
  bool from_top = false;  // end with few ids above the band's lower end, not just few in the band
};

// The cut lies at or above `low` and below `high`.
struct Band {
  float low, high;
  uint32_t count;  // of ids in it
  uint32_t above;  // of ids above it
  double mass_above;
  double target;  // mass wanted
};

// Sums of eight values over the warp: lane l gets that of value l / 4. Nine shuffles instead of forty.
__device__ inline float warp_sums(float (&v)[kLevels], int lane) {
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
    const bool upper = lane & half * 4;
#pragma unroll
    for (int k = 0; k < half; ++k) {
      const float keep = upper ? v[k + half] : v[k], give = upper ? v[k] : v[k + half];
      v[k] = keep + __shfl_xor_sync(~0u, give, half * 4);
    }
  }
  v[0] += __shfl_xor_sync(~0u, v[0], 2);
  return v[0] + __shfl_xor_sync(~0u, v[0], 1);
}

// Of the ids with low <= x < high: mass and number at or above each t (t[0] is low), summed over the cluster.
// Lane k < 8 gets level k's mass, lane 16 + k its count. `live`: the lane's quads that may have such ids.
__device__ inline void measure(Row& r, const float (&t)[kLevels], float high, uint32_t& live, float top,
                               float scale, double& mass, uint32_t& count) {
  float sum[kLevels] = {};
  uint32_t counts[kLevels / 2] = {};
  for (uint32_t left = live; left != 0; left &= left - 1) {
    const int j = __ffs(int(left)) - 1;
    const float4 quad = r.quad(j);
    const float* v = &quad.x;
    float w[4], most = kBelowAll;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool inside = v[c] >= t[0] && v[c] < high;
      w[c] = inside ? weight_of(v[c], top, scale) : 0;
      if (inside) sum[0] += w[c], counts[0] += 1, most = fmaxf(most, v[c]);
    }
    if (most == kBelowAll) live &= ~(1u << j);
#pragma unroll
    for (int k = 1; k < kLevels; ++k) {
      if (most < t[k]) break;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (v[c] >= t[k] && v[c] < high) sum[k] += w[c], counts[k / 2] += k % 2 ? 0x10000u : 1u;
      }
    }
  }
  __syncwarp();
  Shared& s = *r.shared;
  const float one = warp_sums(sum, r.lane);
  if (r.lane % 4 == 0) s.warp_mass[r.warp][r.lane / 4] = one;
#pragma unroll
  for (int k = 0; k < kLevels / 2; ++k) {
    counts[k] = __reduce_add_sync(~0u, counts[k]);
    if (r.lane == k) s.warp_count[r.warp][k] = counts[k];
  }
  __syncthreads();
  // Each warp sums up the block for two blocks of the cluster.
  Levels* here = s.levels[r.parity];
  r.parity ^= 1;
  const int k = r.lane % kLevels;
  mass = 0, count = 0;
  for (int w = 0; w < kWarps; ++w)
    mass += s.warp_mass[w][k], count += s.warp_count[w][k / 2] >> k % 2 * 16 & 0xffff;
  for (int to = r.warp; to < r.cluster; to += kWarps) {
    Levels& there = cg::this_cluster().map_shared_rank(here, to)[r.rank];
    if (r.lane < kLevels) there.mass[k] = mass;
    if (r.lane >= 16 && r.lane < 16 + kLevels) there.count[k] = count;
  }
  cg::this_cluster().sync();
  mass = 0, count = 0;
  for (int b = r.lane / kLevels % 2; b < r.cluster; b += 2) {
    if (r.lane < 16)
      mass += here[b].mass[k];
    else
      count += here[b].count[k];
  }
  mass += __shfl_xor_sync(~0u, mass, kLevels);
  count += __shfl_xor_sync(~0u, count, kLevels);
}

// Threshold k (1 .. 7) of a round, strictly inside the band; in order of k. By value at first, which suits
// logits; by key where that has not settled it, which is sure to end: 32 bits, three a round.
__device__ inline float threshold(const Band& b, int round, int k, float top, float scale) {
  const uint32_t low = key_of(b.low), high = key_of(b.high);
  float t;
  if (round == 0) {  // 24, 12, 6 … 0.375 below the largest
    t = top - float(24 >> (k - 1 < 3 ? k - 1 : 3)) / float(k > 4 ? 1 << (k - 4) : 1) / scale;
  } else if (b.low > -FLT_MAX && round < 8) {
    t = b.low + (b.high - b.low) * (float(k) / kLevels);
  } else if (round < 4) {  // nothing is known of the lower end
    t = b.high - float(8 << (kLevels - 1 - k)) / scale;
  } else {
    t = value_of(low + uint32_t(uint64_t(high - low) * uint32_t(k) / kLevels));
  }
  return value_of(min(max(key_of(finite(t)), low + 1), high - 1));
}

__device__ __noinline__ Band narrow(Row& r, const Goal& goal, float top, float scale) {
  Band b{goal.floor, value_of(key_of(top) + 1), 0, 0, 0, 0};
  uint32_t live = r.quads() < 32 ? (1u << r.quads()) - 1 : ~0u;
  for (int round = 0;; ++round) {
    const float mine = r.lane % kLevels ? threshold(b, round, r.lane % kLevels, top, scale) : b.low;
    float t[kLevels];
#pragma unroll
    for (int k = 0; k < kLevels; ++k) t[k] = __shfl_sync(~0u, mine, k);
    double mass;
    uint32_t count;
    measure(r, t, b.high, live, top, scale, mass, count);
    if (round == 0) b.target = double(goal.share) * __shfl_sync(~0u, mass, 0);
    // The lower end holds the cut, whatever rounding makes of the sums.
    const bool reached = goal.count ? r.lane >= 16 && b.above + count >= goal.count
                                    : r.lane < 16 && b.mass_above + mass >= b.target;
    const uint32_t levels = (__ballot_sync(~0u, reached) >> (goal.count ? 16 : 0) & 0xff) | 1;
    const int at = 31 - __clz(int(levels));
    b.low = __shfl_sync(~0u, mine, at);
    b.count = __shfl_sync(~0u, count, 16 + at);
    if (at + 1 < kLevels) {
      b.high = __shfl_sync(~0u, mine, at + 1);
      const uint32_t beyond = __shfl_sync(~0u, count, 16 + at + 1);
      b.count -= beyond, b.above += beyond;
      b.mass_above += __shfl_sync(~0u, mass, at + 1);
    }
    const uint32_t few = goal.from_top ? b.above + b.count : b.count;
    if (few <= kBand || key_of(b.high) - key_of(b.low) <= 1) return b;
    if (goal.count && b.above + b.count <= goal.count) return b;
  }
}

// shared->gathered[0, n) into shared->sorted, greater ones first: each one's place is the number of those
// before it, counted by two threads.
__device__ inline void sort_gathered(Row& r, int n) {
  const int mine = int(threadIdx.x) / 2;
  uint64_t own = 0;
  uint32_t place = 0;
  if (mine < n) {
    own = r.shared->gathered[mine];
    for (int i = int(threadIdx.x) % 2; i < n; i += 2) place += r.shared->gathered[i] > own;
  }
  place += __shfl_xor_sync(~0u, place, 1);
  if (mine < n && threadIdx.x % 2 == 0) r.shared->sorted[place] = own;
  __syncthreads();
}

// Ids with low <= x < high, of those at low only up to id_limit, sorted into shared->sorted of every block; at
// most kBand of them. Returns how many.
__device__ __noinline__ int gather(Row& r, float low, int id_limit, float high) {
  const auto wanted = [&](float x, int id) { return x >= low && x < high && (x > low || id <= id_limit); };
  uint32_t own = 0;
#pragma unroll 2
  for (int j = 0; j < r.quads(); ++j) {
    const float4 quad = r.quad(j);
    const float* v = &quad.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) own += wanted(v[c], r.id_of(j) + c);
  }
  own = __reduce_add_sync(~0u, own);
  const uint32_t* said = exchange(r, own);
  uint32_t before = 0, all = 0;
  for (int e = r.lane; e < r.entries(); e += 32) {
    all += said[e];
    if (e < r.entry()) before += said[e];
  }
  before = __reduce_add_sync(~0u, before);
  all = min(__reduce_add_sync(~0u, all), uint32_t(kBand));
  for (int j = 0; own > 0 && j < r.quads(); ++j) {
    const float4 quad = r.quad(j);
    const float* v = &quad.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool mine = wanted(v[c], r.id_of(j) + c);
      const unsigned others = __ballot_sync(~0u, mine);
      const uint32_t place = before + __popc(others & ((1u << r.lane) - 1));
      if (mine && place < kBand) {
        const uint64_t one = composite(v[c], r.id_of(j) + c);
        for (int b = 0; b < r.cluster; ++b)
          cg::this_cluster().map_shared_rank(r.shared->gathered, b)[place] = one;
      }
      before += __popc(others);
    }
  }
  cg::this_cluster().sync();
  sort_gathered(r, int(all));
  return int(all);
}

// The id of the nth (from 0) of those equal to `value`, in order of ids; the same in every thread.
__device__ __noinline__ int nth_equal(Row& r, float value, uint32_t nth) {
  uint32_t own = 0;
  for (int i = r.lane; i < r.size; i += 32) own += r.x[i] == value;
  own = __reduce_add_sync(~0u, own);
  const uint32_t* said = exchange(r, own);
  uint32_t before = 0;
  for (int e = r.lane; e < r.entry(); e += 32) before += said[e];
  before = __reduce_add_sync(~0u, before);
  int32_t id = -1;
  if (nth >= before && nth < before + own) {
    for (int i = r.lane; i < r.size; i += 32) {  // size is a multiple of 32: the warp stays together
      const unsigned equal = __ballot_sync(~0u, r.x[i] == value);
      if (nth < before + __popc(equal)) {
        id = r.begin + i - r.lane + int(__fns(equal, 0, int(nth - before) + 1));
        break;
      }
      before += __popc(equal);
    }
  }
  const int32_t* ids = exchange(r, id);
  int32_t found = -1;
  for (int e = r.lane; e < r.entries(); e += 32) found = max(found, ids[e]);
  return __reduce_max_sync(~0u, found);
}

// The `wanted` first ids (at most kBand) into shared->sorted; returns how many lie there, which may be more.
__device__ inline int gather_first(Row& r, float floor, uint32_t wanted, float top, float scale) {
  const Band b = narrow(r, {.floor = floor, .count = wanted, .from_top = true}, top, scale);
  int limit = INT32_MAX;
  if (b.above + b.count > kBand) limit = nth_equal(r, b.low, wanted - b.above - 1);
  return gather(r, b.low, limit, -kBelowAll);
}

// How many of the first n of shared->sorted reach `target` of weight, beginning with `before`; at least one.
__device__ inline int reaching(const Row& r, int n, double before, double target, float top, float scale) {
  constexpr int kPer = kBand / 32;
  double own = 0, upto[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int at = r.lane * kPer + i;
    own += at < n ? weight_of(composite_value(r.shared->sorted[at]), top, scale) : 0;
    upto[i] = own;
  }
  const double earlier = inclusive_sum(own, r.lane) - own + before;
  int short_of = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) short_of += earlier + upto[i] < target;
  return min(__reduce_add_sync(~0u, short_of) + 1, n);
}

// Where what is kept ends: everything above `value`, and ids up to `id` of those equal to it.
struct Cut {
  float value;
  int32_t id;
};

__device__ inline Cut find_cut(Row& r, const Goal& goal, const Band& b, float top, float scale) {
  const bool by_mass = goal.count == 0;
  if (b.count == 0 || (!by_mass && b.above + b.count <= goal.count)) return {b.low, INT32_MAX};
  if (b.count > kBand) {  // many equals
    uint32_t keep = goal.count - b.above;
    if (by_mass) {
      const double each = weight_of(b.low, top, scale), missing = b.target - b.mass_above;
      keep = each > 0 ? uint32_t(fmin(fmax(ceil(missing / each), 1.0), double(b.count))) : b.count;
    }
    return {b.low, nth_equal(r, b.low, keep - 1)};
  }
  const int n = gather(r, b.low, INT32_MAX, b.high);
  const int kept = by_mass ? reaching(r, n, b.mass_above, b.target, top, scale) : int(goal.count - b.above);
  const uint64_t last = r.shared->sorted[kept - 1];
  return {composite_value(last), composite_id(last)};
}

// Forgets what is not kept, and sums up the rest of this warp's run.
__device__ inline double apply_cut(const Row& r, const Cut& cut, float top, float scale) {
  float4 sums = {0, 0, 0, 0};
  float* sum = &sums.x;
#pragma unroll 2
  for (int j = 0; j < r.quads(); ++j) {
    float4 quad = r.quad(j);
    float* v = &quad.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (v[c] > cut.value || (v[c] == cut.value && r.id_of(j) + c <= cut.id))
        sum[c] += weight_of(v[c], top, scale);
      else
        v[c] = kBelowAll;
    }
    r.quad(j) = quad;
  }
  __syncwarp();
  return warp_sum(double((sums.x + sums.y) + (sums.z + sums.w)));
}

}  // namespace sluice::cuda::sampling_kernel
