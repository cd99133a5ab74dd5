// Sizes that steps of one row per sequence are padded to, so that few recorded steps serve every batch. Close
// together where a step is short: what padding costs grows with the gap, what a record costs is start-up time
// and some MiB.
#pragma once

#include <vector>

namespace sluice {

// Beyond it launching a step costs next to nothing of its time.
inline constexpr int kMaxReplayRows = 512;

// Ascending: 1, 2, 4, 8, 16, 24, 32, then by 16 to 128, by 32 to 256, by 64 to kMaxReplayRows; none above
// max_sequences, which is the last one itself unless it is above kMaxReplayRows.
std::vector<int> replay_buckets(int max_sequences);

// The smallest of `buckets` that holds `rows`; 0: none does.
int replay_bucket(const std::vector<int>& buckets, int rows);

}  // namespace sluice
