// The hashes that were added last: a set that forgets by itself, about the oldest first. Of a bounded size,
// made once; a lookup and an addition touch one cache line. Two values of one hash are taken for one, so it
// serves for counting, not for finding.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

class RecentHashes {
 public:
  // Room for at least so many, up to kMost.
  explicit RecentHashes(size_t count)
      : sets_(std::bit_ceil(std::clamp(count, kWays, kMost) / kWays)), mask_(sets_.size() - 1) {}

  void add(uint64_t hash) {
    Set& set = sets_[at(hash)];
    if (has(hash)) return;
    std::shift_right(std::begin(set.hashes), std::end(set.hashes), 1);
    set.hashes[0] = named(hash);
    empty_ = false;
  }
  bool has(uint64_t hash) const {
    return std::ranges::find(sets_[at(hash)].hashes, named(hash)) != std::end(sets_[at(hash)].hashes);
  }
  bool empty() const { return empty_; }

  static constexpr size_t kMost = size_t{1} << 20;  // 8 MiB

 private:
  static constexpr size_t kWays = 8;
  struct alignas(64) Set {
    uint64_t hashes[kWays] = {};  // the newest first; 0: none
  };
  // A hash's low bits may be less mixed than its high ones.
  size_t at(uint64_t hash) const { return size_t(hash ^ hash >> 32) & mask_; }
  static uint64_t named(uint64_t hash) { return hash ? hash : 1; }

  std::vector<Set> sets_;
  size_t mask_;
  bool empty_ = true;
};

}  // namespace sluice
