// How many blocks the cache gets, and how long a request may become. Pure: numbers in, numbers out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/result.h"
#include "kv/block_table.h"

namespace sluice {

// A card's own memory. The pool may take the rest of the fraction, but not all of the card: recorded steps and
// kernels that the driver loads when they are first launched come after it.
struct CardMemory {
  size_t total = 0;       // 0: there is no card; memory is shared with everything else
  size_t used = 0;        // by weights, activations and workspaces, and by other programs
  size_t others = 0;      // of that, by other programs when this one began
  double fraction = 0.9;  // of total, what may be used

  static constexpr size_t kKeptBack = size_t{768} << 20;  // for what comes after the pool
  size_t most() const { return total - std::min(total, kKeptBack); }
  size_t allowed() const { return std::min(size_t(double(total) * fraction), most()); }
  size_t left() const { return allowed() - std::min(allowed(), used); }
};

struct KvWish {
  KvLayout layout;  // max_length: the context wished for
  size_t block_bytes = 0;
  size_t kv_bytes = 0;       // given by the user; 0: choose
  size_t free_bytes = 0;     // memory left once the weights are in
  size_t machine_bytes = 0;  // all that the machine has, in use or not; 0: not known
  int max_sequences = 0;
  CardMemory card;
};

struct KvSize {
  KvLayout layout;  // max_length: what a request may span, at most what was wished for
  int blocks = 0;
  std::string reason;         // for people: what decided
  bool exceeds_free = false;  // as configured, though less memory is free
};

// Chosen on a card: all that is left of the fraction, up to room for max_sequences requests of the whole
// context. Chosen elsewhere: room for max_sequences requests of a moderate length, or for one of the longest if
// that is more; at most half of the free memory. The pool is touched only as it is used, so a generous choice
// costs address space, not memory. Where not even one longest request fits, the context shrinks. Error
// (kResourceExhausted): not enough for kMinContext (on a card it says how much is short and which settings free
// it), or more asked for than the card or the machine has at all.
Result<KvSize> size_kv(const KvWish& wish);

inline constexpr int kModerateContext = 2048;  // tokens per sequence that the choice reckons with
inline constexpr int kMinContext = 64;         // what a lack of memory may shrink it to
inline constexpr int kLeastContext = 16;       // what may be asked for

}  // namespace sluice
