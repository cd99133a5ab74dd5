// From where on something is what holds a server back: one set for the live view's verdict and for the
// diagnosis, so that the two never contradict each other.
#pragma once

namespace sluice {

// Shares of what this machine was measured to do. Bandwidth: 0.9 was tried, and never reached on an H200 (one
// stream, which does nothing but read weights: 0.85; a model of 70B 0.89; 16 streams 0.81), since the measured
// rate is that of a kernel that only reads, and nothing is read between two products. Compute: 0.85 was tried.
// Prompts alone reach 0.79 to 0.81 of what the card does in a short burst, with attention between the products
// and a clock that the power cap holds down; the one reading of that clock may come at a moment when it is up.
inline constexpr double kBandwidthBound = 0.80, kLittleCompute = 0.60, kComputeBound = 0.75;
// Of the time in which there is work: the device stands still.
inline constexpr double kHostBound = 0.15;

inline bool is_bandwidth_bound(double bandwidth, double compute) {
  return bandwidth > kBandwidthBound && compute < kLittleCompute;
}
// Prompts alone read little and compute all the time, so bandwidth is not asked for.
inline bool is_compute_bound(double compute) { return compute > kComputeBound; }
inline bool is_host_bound(double gap_share) { return gap_share > kHostBound; }

}  // namespace sluice
