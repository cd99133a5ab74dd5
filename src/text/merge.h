// Greedy pair merging, as byte-pair encoding defines it: the pair with the lowest rank merges first, the
// leftmost among equals. Short words scan an array; long ones use a heap over a linked list, so that a word of
// n symbols costs O(n log n) and a megabyte without a space is no attack.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "text/token_table.h"

namespace sluice {

struct Symbol {
  int32_t id;           // -1: no token has this text
  uint32_t begin, end;  // bytes of the word
};

// Scratch memory of one encode call; reused from word to word.
struct MergeScratch {
  struct Candidate {
    uint32_t rank;
    uint32_t left;  // index of the left symbol
    uint32_t end;   // end of the right symbol: symbols only grow, so an equal end means the same pair
    int32_t id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };
  std::vector<Symbol> symbols;
  std::vector<MergeTable::Merge> pairs;
  std::vector<uint32_t> next, previous;
  std::vector<Candidate> heap;
};

// Merges scratch.symbols in place. lookup(left, right) → MergeTable::Merge.
template <typename Lookup>
void merge_short(MergeScratch& scratch, Lookup&& lookup) {
  auto& s = scratch.symbols;
  auto& pairs = scratch.pairs;
  pairs.clear();
  for (size_t i = 0; i + 1 < s.size(); ++i) pairs.push_back(lookup(s[i], s[i + 1]));
  while (!pairs.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    s[best] = {pairs[best].id, s[best].begin, s[best + 1].end};
    s.erase(s.begin() + std::ptrdiff_t(best) + 1);
    pairs.erase(pairs.begin() + std::ptrdiff_t(best));
    if (best > 0) pairs[best - 1] = lookup(s[best - 1], s[best]);
    if (best < pairs.size()) pairs[best] = lookup(s[best], s[best + 1]);
  }
}

template <typename Lookup>
void merge_long(MergeScratch& scratch, Lookup&& lookup) {
  constexpr uint32_t kEnd = 0xFFFFFFFFu;
  auto& s = scratch.symbols;
  auto &next = scratch.next, &previous = scratch.previous;
  const uint32_t n = uint32_t(s.size());
  next.resize(n);
  previous.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
  }
  scratch.heap.clear();
  std::priority_queue heap(std::greater<MergeScratch::Candidate>(), std::move(scratch.heap));
  auto offer = [&](uint32_t left) {
    if (left == kEnd || next[left] == kEnd) return;
    const Symbol& right = s[next[left]];
    const MergeTable::Merge merge = lookup(s[left], right);
    if (merge.rank != MergeTable::kNoRank) heap.push({merge.rank, left, right.end, merge.id});
  };
  for (uint32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const MergeScratch::Candidate c = heap.top();
    heap.pop();
    const uint32_t right = next[c.left];
    // A symbol that was merged away has an empty range and no right neighbour any more.
    if (s[c.left].begin == s[c.left].end || right == kEnd || s[right].end != c.end) continue;
    s[c.left] = {c.id, s[c.left].begin, c.end};
    s[right].end = s[right].begin;
    next[c.left] = next[right];
    if (next[right] != kEnd) previous[next[right]] = c.left;
    next[right] = kEnd;
    offer(previous[c.left]);
    offer(c.left);
  }
  std::erase_if(s, [](const Symbol& symbol) { return symbol.begin == symbol.end; });
}

template <typename Lookup>
void merge_symbols(MergeScratch& scratch, Lookup&& lookup) {
  // 32: where the two cost the same on English words and code.
  if (scratch.symbols.size() <= 32) {
    merge_short(scratch, lookup);
  } else {
    merge_long(scratch, lookup);
  }
}

}  // namespace sluice
