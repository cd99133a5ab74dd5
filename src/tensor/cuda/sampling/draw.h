// One draw along a row in order of ids, as tensor/sampling.cc goes, so that a seed names the same id on the CPU
// and on the card wherever their sums agree.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/sampling/select.h"

namespace sluice::cuda::sampling_kernel {

struct Place {
  int entry;
  double left;  // weight left over in it
};

// Where `share` of the sum of mass[0, n) falls, walking along it; the same in all lanes. n is at most 128.
__device__ inline Place find_place(int lane, const double* mass, int n, double share) {
  const int per = (n + 31) / 32, first = lane * per, last = min(first + per, n);
  double own = 0;
  for (int e = first; e < last; ++e) own += mass[e];
  const double upto = inclusive_sum(own, lane);
  const double wanted = share * __shfl_sync(~0u, upto, 31);
  const unsigned past = __ballot_sync(~0u, upto > wanted), some = __ballot_sync(~0u, own > 0);
  const int owner = past ? __ffs(past) - 1 : some ? 31 - __clz(some) : 0;
  const double before = __shfl_up_sync(~0u, upto, 1);
  Place place{0, 0};
  if (lane == owner) {
    double left = wanted - (lane > 0 ? before : 0);
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
__device__ inline int find_id(const Row& r, float top, float scale, double left) {
  const int per = r.size / 32;
  const float* x = r.x + r.lane * per;
  double own = 0;
  for (int i = 0, at = r.lane % per; i < per; ++i) {  // begins elsewhere in each lane: no bank conflicts
    own += weight_of(x[at], top, scale);
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
    const double w = i + r.lane < per ? weight_of(r.x[owner * per + i + r.lane], top, scale) : 0;
    upto = inclusive_sum(w, r.lane);
    past = __ballot_sync(~0u, upto > left && w > 0);
    some = __ballot_sync(~0u, w > 0);
    if (some) chosen = r.begin + owner * per + i + (past ? __ffs(past) - 1 : 31 - __clz(some));
    if (past) break;
    left -= __shfl_sync(~0u, upto, 31);
  }
  return chosen;
}

// A draw among the first n of shared->sorted, of which top_p keeps those that reach `target`. One block's work;
// the id is known to its first warp, -1 elsewhere.
__device__ inline int draw_from_list(Row& r, int n, bool by_mass, double target, float top, float scale,
                                     double u) {
  if (r.rank != 0) return -1;
  if (by_mass) n = reaching(r, n, 0, target, top, scale);
  Shared& s = *r.shared;
  __syncthreads();
  const int i = int(threadIdx.x);
  if (i < n) s.gathered[i] = s.sorted[i] << 32 | s.sorted[i] >> 32;  // ids first: greatest ~id is the lowest id
  __syncthreads();
  sort_gathered(r, n);
  auto* weights = reinterpret_cast<double*>(s.gathered);
  if (i < n) weights[i] = weight_of(value_of(uint32_t(s.sorted[i])), top, scale);
  __syncthreads();
  if (r.warp != 0) return -1;
  return int(~uint32_t(s.sorted[find_place(r.lane, weights, n, u).entry] >> 32));
}

__device__ inline double list_mass(const Row& r, int n, float top, float scale) {
  double own = 0;
  for (int i = r.lane; i < n; i += 32) own += weight_of(composite_value(r.shared->sorted[i]), top, scale);
  return warp_sum(own);
}

// A random row's id: filters cut what they exclude off the row, then one draw along what is left. Ends known
// to one warp, -1 in all others.
__device__ inline int draw(Row& r, const StagedRow& wish, float top) {
  const float scale = wish.scale;
  const double u = wish.uniform;
  const bool by_count = wish.top_k > 0, by_mass = wish.top_p < 1;
  Cut cut{wish.has_min_p ? fmaxf(top - wish.min_p_depth, -FLT_MAX) : -FLT_MAX, INT32_MAX};
  if (by_count && wish.top_k <= kBand) {
    const int n = min(gather_first(r, cut.value, uint32_t(wish.top_k), top, scale), wish.top_k);
    const double target = by_mass ? double(wish.top_p) * list_mass(r, n, top, scale) : 0;
    return draw_from_list(r, n, by_mass, target, top, scale, u);
  }
  if (by_count) {
    const Goal goal{.floor = cut.value, .count = uint32_t(wish.top_k)};
    cut = find_cut(r, goal, narrow(r, goal, top, scale), top, scale);
    if (by_mass) apply_cut(r, cut, top, scale);
  }
  if (by_mass) {
    const Goal goal{.floor = cut.value, .share = wish.top_p};
    const Band b = narrow(r, goal, top, scale);
    if (b.above + b.count <= kBand) {
      const int n = gather(r, b.low, INT32_MAX, -kBelowAll);
      return draw_from_list(r, n, true, b.target, top, scale, u);
    }
    cut = find_cut(r, goal, b, top, scale);
  }
  const bool whole = !by_count && !by_mass && !wish.has_min_p;
  const double own = whole ? mass_of(r, top, scale) : apply_cut(r, cut, top, scale);
  const Place place = find_place(r.lane, exchange(r, own), r.entries(), u);
  return place.entry == r.entry() ? find_id(r, top, scale, place.left) : -1;
}

}  // namespace sluice::cuda::sampling_kernel
