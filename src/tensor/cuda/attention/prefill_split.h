// How far a step's prefill is split along the keys: a pure function of its items' contexts, the query heads and
// the card's multiprocessors, in whole numbers. plan.cu computes it on the card, prefill_split_test.cc without
// one.
//
// An item (a tile of query rows) that sees t tiles of cached tokens becomes ceil(t / most) pieces of equal
// length, `most` being common to the step. One item of 32 heads leaves 100 of 132 multiprocessors idle; five
// take two rounds, of which the second is a fifth full. Pieces fill these holes, but each costs what does not
// overlap in a task, and its partial sums. Steps that fill the card by themselves (16 items of about one
// length, contexts of a few tiles) are not split.
#pragma once

#include <cstdint>

namespace sluice::cuda {

inline constexpr int kMostPieces = 16;  // of an item
inline constexpr int kMostSplitItems = 512;
inline constexpr int kSplitRounds = 8;    // of whole tasks over the card; where there are more, little is idle
inline constexpr int kPieceRounds = 4;    // of tasks with partial sums: what scratch is sized for
inline constexpr int kLeastPiece = 4;     // tiles
inline constexpr int kPieceOverhead = 3;  // tiles that take as long as a piece's start and end

// What a step asks of the card, in tiles of cached tokens.
struct SplitWork {
  int items, tiles, longest;  // of all items; of the longest
  int heads, multiprocessors;
};
// What comes of a bound on the pieces' length.
struct SplitOutcome {
  int pieces;        // of all items
  int split_pieces;  // of those in more than one piece
};

constexpr int most_tiles(const SplitWork& w, int pieces_of_longest) {
  return (w.longest + pieces_of_longest - 1) / pieces_of_longest;
}
constexpr int pieces_of(int tiles, int most) { return (tiles + most - 1) / most; }

constexpr bool may_split(const SplitWork& w) {
  return w.items > 0 && w.items <= kMostSplitItems && w.items * w.heads <= kSplitRounds * w.multiprocessors &&
         w.longest >= 2 * kLeastPiece;
}
// Time with pieces of at most `most` tiles, in tiles times multiprocessors; whole items are free of overhead,
// as it is part of any choice. Less than 0: not possible.
constexpr int split_cost(const SplitWork& w, int most, const SplitOutcome& o) {
  if (o.split_pieces == 0) {
    const int rounds =
        (w.tiles * w.heads + w.longest * w.multiprocessors - 1) / (w.longest * w.multiprocessors);
    return w.longest * rounds * w.multiprocessors;
  }
  if (most < kLeastPiece || o.split_pieces * w.heads > kPieceRounds * w.multiprocessors) return -1;
  // By the sum of lengths; and a cut item's pieces are longer than most / 2, so two of them are a round each.
  const int by_length = (w.tiles * w.heads + most * w.multiprocessors - 1) / (most * w.multiprocessors);
  const int by_pieces = (o.split_pieces * w.heads + w.multiprocessors - 1) / w.multiprocessors;
  const int rounds = by_length > by_pieces ? by_length : by_pieces;
  return most * rounds * w.multiprocessors + kPieceOverhead * o.pieces * w.heads;
}
// A split must save a tenth: what is idle at the end of a step with many tasks is not worth partial sums.
constexpr bool pays(int cost, int unsplit) { return cost >= 0 && cost * 10 <= unsplit * 9; }

}  // namespace sluice::cuda
