// What is cut into how many pieces, without a card. `Splitter` reckons as plan.cu does, one item after the
// other.
#include "tensor/cuda/attention/prefill_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sluice::cuda {
namespace {

struct Splitter {
  int heads = 32, multiprocessors = 132;

  SplitWork work_of(const std::vector<int>& tiles) const {
    SplitWork w{int(tiles.size()), 0, 0, heads, multiprocessors};
    for (int t : tiles) w.tiles += t, w.longest = std::max(w.longest, t);
    return w;
  }
  SplitOutcome outcome(const std::vector<int>& tiles, int most) const {
    SplitOutcome o{};
    for (int t : tiles) {
      const int n = pieces_of(t, most);
      o.pieces += n;
      o.split_pieces += n > 1 ? n : 0;
    }
    return o;
  }
  // Of each item.
  std::vector<int> pieces(const std::vector<int>& tiles) const {
    const SplitWork w = work_of(tiles);
    std::vector<int> result(tiles.size(), 1);
    if (!may_split(w)) return result;
    const int unsplit = split_cost(w, w.longest, outcome(tiles, w.longest));
    int least = -1, most = w.longest;
    for (int i = 2; i <= kMostPieces; ++i) {
      const int each = most_tiles(w, i), cost = split_cost(w, each, outcome(tiles, each));
      if (pays(cost, unsplit) && (least < 0 || cost < least)) least = cost, most = each;
    }
    for (size_t i = 0; i < tiles.size(); ++i) result[i] = pieces_of(tiles[i], most);
    return result;
  }
};

// `items` tiles of 128 rows at the end of a context of `tiles` tiles.
std::vector<int> chunk(int items, int tiles) {
  std::vector<int> all;
  for (int i = 0; i < items; ++i) all.push_back(tiles - items + 1 + i);
  return all;
}

TEST(PrefillSplit, FewItemsBehindLongContextsFillTheCard) {
  const Splitter s;
  EXPECT_EQ(s.pieces({212}), std::vector{4}) << "32 heads times 4 pieces on 132";
  EXPECT_EQ(s.pieces({32}), std::vector{4}) << "4,096 tokens";
  for (int n : s.pieces(chunk(5, 128))) EXPECT_GE(n, 3);
  for (int n : s.pieces(chunk(3, 128))) EXPECT_GE(n, 2);
  EXPECT_EQ((Splitter{.heads = 9}.pieces({212})), std::vector{14});
}

TEST(PrefillSplit, WhatFillsTheCardStaysWhole) {
  const Splitter s;
  for (int chunk_number = 1; chunk_number <= 64; ++chunk_number)
    for (int n : s.pieces(chunk(16, 16 * chunk_number)))
      ASSERT_EQ(n, 1) << "2,048 rows, chunk " << chunk_number;
  for (int n : s.pieces(std::vector(64, 4))) EXPECT_EQ(n, 1) << "16 prompts of 512";
  for (int n : s.pieces({1, 2, 3, 4})) EXPECT_EQ(n, 1) << "a short prompt";
  for (int n : s.pieces(std::vector(40, 200))) EXPECT_EQ(n, 1) << "many rounds";
}

TEST(PrefillSplit, ShortItemsBesideALongOneStayWhole) {
  const auto n = Splitter{}.pieces({212, 1, 1, 2, 8, 30});
  EXPECT_GE(n[0], 4);
  for (size_t i = 1; i < n.size(); ++i) EXPECT_EQ(n[i], 1);
}

// Whatever the items: no empty piece, none too short or too many, sums within the scratch.
TEST(PrefillSplit, KeepsItsBounds) {
  std::mt19937 random(1);
  const auto upto = [&](int n) { return 1 + int(random() % uint32_t(n)); };
  for (int round = 0; round < 20000; ++round) {
    const Splitter s{.heads = upto(64), .multiprocessors = 100 + upto(60)};
    std::vector<int> tiles;
    for (int i = upto(1 + upto(40)); i > 0; --i) tiles.push_back(upto(upto(2048)));
    const auto n = s.pieces(tiles);
    int split = 0;
    for (size_t i = 0; i < n.size(); ++i) {
      ASSERT_GE(n[i], 1);
      ASSERT_LE(n[i], kMostPieces);
      if (n[i] == 1) continue;
      ASSERT_GE(tiles[i] / n[i], kLeastPiece / 2);
      split += n[i];
      int covered = 0;  // as make_task cuts
      for (int piece = 0; piece < n[i]; ++piece) {
        const int begin = tiles[i] * piece / n[i], end = tiles[i] * (piece + 1) / n[i];
        ASSERT_EQ(begin, covered);
        ASSERT_GT(end, begin);
        covered = end;
      }
      ASSERT_EQ(covered, tiles[i]);
    }
    ASSERT_LE(split * s.heads, kPieceRounds * s.multiprocessors);
  }
}

}  // namespace
}  // namespace sluice::cuda
