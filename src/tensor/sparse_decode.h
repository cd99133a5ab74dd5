// Decode over a part of a long context (Quest, arXiv 2406.10774). A sequence with exactly one row in a step and
// more than `above_tokens` cached tokens reads, in layers that see everything, its first block, its newest
// tokens, and of the blocks between those with the highest scores: as many as make `keep_share` of all its
// blocks. How many that is depends on its length alone; which they are is chosen per layer and kv head.
//
// A block's score is the most that any of its keys could come to, by bounds per channel: over the query heads
// that read the kv head, the largest of  sum over channels d of max(q[d] * low[d], q[d] * high[d]).  Of equals
// the later block is kept. Bounds are of the keys in full precision, half-precision numbers, made once a block
// is whole; where they lie is the backend's own affair, but they go with a block wherever it is moved or
// copied.
#pragma once

#include <algorithm>

namespace sluice {

struct SparseDecode {
  int above_tokens = 0;  // 0: off
  float keep_share = 1;  // 0..1

  static constexpr int kRecentTokens = 64;

  constexpr bool on() const { return above_tokens > 0; }
  // `rows` of the sequence in the step, `length` tokens in its cache with them, `window` of the layer.
  constexpr bool applies(int rows, int length, int window) const {
    return on() && rows == 1 && length > above_tokens && window == 0;
  }
  // The newest tokens' blocks are kept from here on.
  static constexpr int first_recent(int length, int block_tokens) {
    return std::max(0, length - kRecentTokens) / block_tokens;
  }
  // Blocks that are read, of the ceil(length / block_tokens).
  constexpr int kept(int length, int block_tokens) const {
    const int blocks = (length + block_tokens - 1) / block_tokens;
    const int always = std::min(blocks, blocks - first_recent(length, block_tokens) + 1);
    const float share = keep_share * float(blocks);
    return std::clamp(int(share) + (float(int(share)) < share), always, blocks);
  }
  // Tokens in these: the last block is among them and may not be whole.
  constexpr int kept_tokens(int length, int block_tokens) const {
    const int blocks = (length + block_tokens - 1) / block_tokens;
    return length - (blocks - kept(length, block_tokens)) * block_tokens;
  }
};

}  // namespace sluice
