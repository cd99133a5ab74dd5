// How many blocks the cache gets, and how long a request may become. Pure: numbers in, numbers out.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "kv/block_table.h"

namespace sluice {

struct KvWish {
  KvLayout layout;  // max_length: the context wished for
  size_t block_bytes = 0;
  size_t kv_bytes = 0;    // given by the user; 0: choose
  size_t free_bytes = 0;  // memory left once the weights are in
  int max_sequences = 0;
};

struct KvSize {
  KvLayout layout;  // max_length: what a request may span, at most what was wished for
  int blocks = 0;
  std::string reason;  // for people: what decided
};

// Chosen: room for max_sequences requests of a moderate length, or for one of the longest if that is more; at
// most half of the free memory. The pool is touched only as it is used, so a generous choice costs address
// space, not memory. Where not even one longest request fits, the context shrinks. Error (kResourceExhausted):
// not enough for kMinContext.
Result<KvSize> size_kv(const KvWish& wish);

inline constexpr int kModerateContext = 2048;  // tokens per sequence that the choice reckons with
inline constexpr int kMinContext = 64;         // what a lack of memory may shrink it to
inline constexpr int kLeastContext = 16;       // what may be asked for

}  // namespace sluice
