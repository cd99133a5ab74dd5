// From where on something is what holds a server back: one set for the live view's verdict and for the
// diagnosis, so that the two never contradict each other.
#pragma once

namespace sluice {

// Shares of what this machine was measured to do, as the issue that asked for the diagnosis defines them.
inline constexpr double kBandwidthBound = 0.90, kLittleCompute = 0.60, kComputeBound = 0.85;
// Of the time in which there is work: the device stands still.
inline constexpr double kHostBound = 0.15;

inline bool is_bandwidth_bound(double bandwidth, double compute) {
  return bandwidth > kBandwidthBound && compute < kLittleCompute;
}
// Prompts alone read little and compute all the time, so bandwidth is not asked for.
inline bool is_compute_bound(double compute) { return compute > kComputeBound; }
inline bool is_host_bound(double gap_share) { return gap_share > kHostBound; }

}  // namespace sluice
