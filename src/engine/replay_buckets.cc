#include "engine/replay_buckets.h"

#include <algorithm>

namespace sluice {
namespace {

int next_bucket(int rows) {
  if (rows < 16) return 2 * rows;
  if (rows < 32) return rows + 8;
  if (rows < 128) return rows + 16;
  if (rows < 256) return rows + 32;
  return rows + 64;
}

}  // namespace

std::vector<int> replay_buckets(int max_sequences) {
  const int most = std::min(max_sequences, kMaxReplayRows);
  std::vector<int> buckets;
  for (int rows = 1; rows < most; rows = next_bucket(rows)) buckets.push_back(rows);
  if (most > 0) buckets.push_back(most);
  return buckets;
}

int replay_bucket(const std::vector<int>& buckets, int rows) {
  const auto at = std::lower_bound(buckets.begin(), buckets.end(), rows);
  return at == buckets.end() ? 0 : *at;
}

}  // namespace sluice
