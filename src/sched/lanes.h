// Lanes by number: their weights, and the part of a resource that is a lane's own.
#pragma once

#include <array>
#include <cstdint>

#include "sched/request.h"

namespace sluice {

template <typename T>
using PerLane = std::array<T, kLanes>;

// Of slots, blocks and step time, while more than one lane has work. Beside interactive sequences alone,
// `batch` makes a step longer by at most 1/16.
using LaneWeights = PerLane<int>;
inline constexpr LaneWeights kDefaultLaneWeights = {16, 4, 1};
inline constexpr int kMaxLaneWeight = 1000;

// What of `total` nobody can take from `lane` for good: one, and of the rest by weight, rounded down. None
// where there is not one for each.
constexpr int lane_share(const LaneWeights& weights, int lane, int total) {
  if (total < kLanes) return 0;
  int64_t sum = 0;
  for (const int w : weights) sum += w;
  return 1 + int(int64_t(total - kLanes) * weights[size_t(lane)] / sum);
}

}  // namespace sluice
