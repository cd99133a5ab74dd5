// top_k, top_p and the list of the likeliest, without sorting the vocabulary: thresholds narrow down a band of
// logits that holds the cut, four parts at a time, until the band's ids are few enough to be sorted.
#pragma once

#include "tensor/cuda/sampling/segment.h"

namespace sluice::cuda::sampling_kernel {

struct Levels {  // of three thresholds: what is at or above each
  double mass[3];
  uint32_t count[3];
};

struct Goal {
  float floor;            // nothing below is looked at
  uint32_t count = 0;     // ids wanted; 0: by mass
  float share = 0;        // of the mass at or above floor
  bool from_top = false;  // end with few ids above the band's lower end, not just few in the band
};

// The cut lies at or above `low` and below `high`.
struct Bracket {
  float low, high;
  uint32_t low_count, high_count;
  double low_mass, high_mass;
  double target;  // mass
};

__device__ inline Levels measure(Row& r, const float (&t)[3], bool masses, float max, float scale) {
  Levels own{};
  for (int j = 0; j < r.quad_count(); ++j) {
    const float4 quad = r.quads()[j * 32 + r.lane];
    const float* v = &quad.x;
    const float most = fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w));
    if (most < t[0]) continue;
    float sum[3] = {0, 0, 0};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float w = masses && v[c] >= t[0] ? weight_of(v[c], max, scale) : 0;
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        own.count[k] += v[c] >= t[k];
        sum[k] += v[c] >= t[k] ? w : 0;
      }
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) own.mass[k] += sum[k];
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    own.count[k] = __reduce_add_sync(~0u, own.count[k]);
    if (masses) own.mass[k] = warp_sum(own.mass[k]);
  }
  const Levels* said = exchange(r, own);
  Levels all{};
  const int per = r.entries_per_lane();
  for (int e = r.lane * per; e < min(r.lane * per + per, r.entries()); ++e) {
#pragma unroll
    for (int k = 0; k < 3; ++k) all.count[k] += said[e].count[k], all.mass[k] += said[e].mass[k];
  }
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    all.count[k] = __reduce_add_sync(~0u, all.count[k]);
    if (masses) all.mass[k] = warp_sum(all.mass[k]);
  }
  return all;
}

// Three thresholds strictly between low and high (some may coincide where fewer values lie between). By value
// at first, which suits logits; by key where that has not settled it, which is sure to end: 32 bits, two a
// round.
__device__ inline void split(const Bracket& b, int round, float scale, float (&t)[3]) {
  const uint32_t low = key_of(b.low), high = key_of(b.high), width = high - low;
  if (round < 10 && b.low > -FLT_MAX) {
    const float quarter = (b.high - b.low) / 4;
    for (int k = 0; k < 3; ++k) t[k] = b.low + quarter * float(k + 1);
  } else if (round < 4) {  // nothing is known of the lower end
    t[0] = b.high - 64 / scale, t[1] = b.high - 16 / scale, t[2] = b.high - 4 / scale;
  } else {
    for (int k = 0; k < 3; ++k) t[k] = value_of(low + uint32_t(uint64_t(width) * uint32_t(k + 1) / 4));
  }
  for (int k = 0; k < 3; ++k) {
    const uint32_t key = key_of(finite(t[k]));
    t[k] = value_of(min(max(key, low + 1), high - 1));
  }
}

__device__ inline Bracket narrow(Row& r, const Goal& goal, float max, float scale) {
  const bool masses = goal.count == 0;
  Bracket b{goal.floor, value_of(key_of(max) + 1), 0, 0, 0, 0, 0};
  for (int round = 0;; ++round) {
    float t[3];
    if (round == 0) {
      t[0] = goal.floor;
      t[1] = fmaxf(max - 6 / scale, goal.floor);
      t[2] = fmaxf(max - 1.5f / scale, goal.floor);
    } else {
      split(b, round, scale, t);
    }
    const Levels at = measure(r, t, masses, max, scale);
    if (round == 0) {  // the floor holds the cut, whatever rounding makes of the sums
      b.low_count = at.count[0], b.low_mass = at.mass[0];
      b.target = double(goal.share) * at.mass[0];
      if (!masses && b.low_count <= goal.count) return b;
    }
    bool above = true;  // thresholds from here up do not reach the goal
#pragma unroll
    for (int k = 2; k >= 0; --k) {
      if (!above || (round == 0 && k == 0)) continue;
      const bool reached = masses ? at.mass[k] >= b.target : at.count[k] >= goal.count;
      if (reached) {
        b.low = t[k], b.low_count = at.count[k], b.low_mass = at.mass[k];
        above = false;
      } else {
        b.high = t[k], b.high_count = at.count[k], b.high_mass = at.mass[k];
      }
    }
    if (b.high <= b.low) {  // the floor itself is the next threshold: all of it is above
      b.high = value_of(key_of(b.low) + 1);
    }
    const uint32_t few = goal.from_top ? b.low_count : b.low_count - b.high_count;
    if (few <= kBand || key_of(b.high) - key_of(b.low) <= 1) return b;
    if (!masses && b.low_count == goal.count) return b;
  }
}

// Ids with low <= x < high, of those at low only up to id_limit, sorted into shared->sorted of every block; at
// most kBand of them. Returns how many.
__device__ inline int gather(Row& r, float low, int id_limit, float high) {
  const auto wanted = [&](float x, int id) { return x >= low && x < high && (x > low || id <= id_limit); };
  uint32_t own = 0;
  for (int j = 0; j < r.quad_count(); ++j) {
    const float4 quad = r.quads()[j * 32 + r.lane];
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
  uint32_t at = before;
  for (int j = 0; own > 0 && j < r.quad_count(); ++j) {
    const float4 quad = r.quads()[j * 32 + r.lane];
    const float* v = &quad.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool mine = wanted(v[c], r.id_of(j) + c);
      const unsigned others = __ballot_sync(~0u, mine);
      const uint32_t place = at + __popc(others & ((1u << r.lane) - 1));
      if (mine && place < kBand) {
        const uint64_t said_here = composite(v[c], r.id_of(j) + c);
        for (int b = 0; b < r.cluster; ++b)
          cg::this_cluster().map_shared_rank(r.shared->gathered, b)[place] = said_here;
      }
      at += __popc(others);
    }
  }
  cg::this_cluster().sync();
  // Each one's place is the number of those before it: two threads count for one.
  const int mine = int(threadIdx.x) / 2;
  uint32_t place = 0;
  if (mine < int(all)) {
    const uint64_t own_one = r.shared->gathered[mine];
    for (int i = int(threadIdx.x) % 2; i < int(all); i += 2) place += r.shared->gathered[i] > own_one;
  }
  place += __shfl_xor_sync(~0u, place, 1);
  if (mine < int(all) && threadIdx.x % 2 == 0) r.shared->sorted[place] = r.shared->gathered[mine];
  __syncthreads();
  return int(all);
}

// The id of the nth (from 0) of those equal to `value`, in order of ids; the same in every thread.
__device__ inline int nth_equal(Row& r, float value, uint32_t nth) {
  uint32_t own = 0;
  for (int i = r.lane; i < r.size; i += 32) own += r.x[i] == value;
  own = __reduce_add_sync(~0u, own);
  const uint32_t* said = exchange(r, own);
  uint32_t before = 0;
  for (int e = r.lane; e < r.entry(); e += 32) before += said[e];
  before = __reduce_add_sync(~0u, before);
  int id = -1;
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
  const int32_t* ids = exchange(r, int32_t(id));
  int32_t found = -1;
  for (int e = r.lane; e < r.entries(); e += 32) found = max(found, ids[e]);
  return __reduce_max_sync(~0u, found);
}

// Where what is kept ends: everything above `value`, and ids up to `id` of those equal to it.
struct Cut {
  float value;
  int32_t id;
};

__device__ inline Cut find_cut(Row& r, const Goal& goal, float max, float scale) {
  const Bracket b = narrow(r, goal, max, scale);
  const bool by_mass = goal.count == 0;
  if (!by_mass && b.low_count <= goal.count) return {b.low, INT32_MAX};
  if (b.low_count - b.high_count > kBand) {  // many equals
    uint32_t keep = goal.count - b.high_count;
    if (by_mass) {
      const double each = weight_of(b.low, max, scale), missing = b.target - b.high_mass;
      keep = each > 0 ? uint32_t(fmin(fmax(ceil(missing / each), 1.0), double(b.low_count - b.high_count)))
                      : b.low_count - b.high_count;
    }
    return {b.low, nth_equal(r, b.low, keep - 1)};
  }
  const int n = gather(r, b.low, INT32_MAX, b.high);
  int last;
  if (by_mass) {  // the first that reaches the target
    constexpr int kPer = kBand / 32;
    double own = 0, upto[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int at = r.lane * kPer + i;
      own += at < n ? weight_of(composite_value(r.shared->sorted[at]), max, scale) : 0;
      upto[i] = own;
    }
    const double before = inclusive_sum(own, r.lane) - own + b.high_mass;
    int short_of = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) short_of += before + upto[i] < b.target;
    last = min(__reduce_add_sync(~0u, short_of), n - 1);
  } else {
    last = min(int(goal.count - b.high_count) - 1, n - 1);
  }
  if (n == 0) return {b.low, INT32_MAX};
  const uint64_t cut = r.shared->sorted[last < 0 ? 0 : last];
  return {composite_value(cut), composite_id(cut)};
}

// Forgets what is not kept, and sums up the rest of this warp's run.
__device__ inline double apply_cut(const Row& r, const Cut& cut, float max, float scale) {
  double sum = 0;
  for (int j = 0; j < r.quad_count(); ++j) {
    float4 quad = r.quads()[j * 32 + r.lane];
    float* v = &quad.x;
    float part = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (v[c] > cut.value || (v[c] == cut.value && r.id_of(j) + c <= cut.id))
        part += weight_of(v[c], max, scale);
      else
        v[c] = kBelowAll;
    }
    r.quads()[j * 32 + r.lane] = quad;
    sum += part;
  }
  __syncwarp();
  return warp_sum(sum);
}

}  // namespace sluice::cuda::sampling_kernel
