#include "tensor/cpu/attention/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tensor/cpu/attention/chunk_kernel.h"

namespace sluice::cpu {
namespace {

struct Sequences {
  std::vector<int32_t> starts{0}, positions;
  void add(int context, int rows) {
    for (int i = 0; i < rows; ++i) positions.push_back(context + i);
    starts.push_back(int32_t(positions.size()));
  }
  PlanInput input(int group, int kv_heads, int window, int threads, int64_t partial_rows = 1 << 20) const {
    return {int(starts.size()) - 1,
            starts.data(),
            positions.data(),
            group,
            kv_heads,
            window,
            threads,
            partial_rows};
  }
};

// Every (sequence, kv head, row) lies in one tile; every chunk that it sees is in one item of that tile.
void expect_complete(const Sequences& s, const PlanInput& in, const Plan& plan) {
  std::map<std::tuple<int, int, int>, int> rows;
  std::map<std::pair<int, int>, int> chunks;
  int64_t partial_rows = 0;
  for (const Item& item : plan.items) {
    for (int c = item.chunk_begin; c < item.chunk_end; ++c) ++chunks[{item.tile, c}];
  }
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    const Tile& t = plan.tiles[i];
    ASSERT_GE(t.rows, 1);
    ASSERT_LE(t.rows, kTileRows);
    for (int r = t.row_begin; r < t.row_begin + t.rows; ++r) {
      ++rows[{t.sequence, t.kv_head, r}];
      const int position = s.positions[size_t(s.starts[size_t(t.sequence)] + r / in.group)];
      ASSERT_LE(t.chunk_begin, first_seen(position, in.window) / kChunkTokens);
      ASSERT_GT(t.chunk_end, position / kChunkTokens);
    }
    for (int c = t.chunk_begin; c < t.chunk_end; ++c) ASSERT_EQ((chunks[{int(i), c}]), 1);
    if (t.first_partial >= 0) {
      ASSERT_EQ(t.first_partial, partial_rows) << "partials overlap";
      partial_rows += int64_t(t.rows) * (t.chunk_end - t.chunk_begin);
    }
  }
  ASSERT_LE(partial_rows, in.max_partial_rows);
  size_t expected = 0;
  for (int q = 0; q < in.sequences; ++q) {
    expected += size_t((s.starts[size_t(q) + 1] - s.starts[size_t(q)]) * in.group * in.kv_heads);
  }
  ASSERT_EQ(rows.size(), expected);
  for (auto& [key, count] : rows) ASSERT_EQ(count, 1);
}

TEST(Plan, CoversEverythingOnce) {
  Sequences s;
  s.add(0, 1);
  s.add(4000, 1);
  s.add(0, 113);
  s.add(77, 0);
  s.add(1000, 100);
  Plan plan;
  for (int group : {1, 3, 7, 100}) {
    for (int window : {0, 1, 512}) {
      for (int threads : {1, 2, 64}) {
        for (int64_t partial_rows : {0, 100, 1 << 20}) {
          const PlanInput in = s.input(group, 3, window, threads, partial_rows);
          plan_attention(in, plan);
          expect_complete(s, in, plan);
        }
      }
    }
  }
}

TEST(Plan, OneLongSequenceIsSharedEvenly) {
  Sequences s;
  s.add(1023, 1);
  Plan plan;
  plan_attention(s.input(3, 3, 0, 2), plan);
  EXPECT_EQ(plan.items.size(), 24u);  // three kv heads, eight chunks
  plan_attention(s.input(3, 3, 0, 1), plan);
  EXPECT_EQ(plan.items.size(), 3u);  // alone there is nothing to share
}

TEST(Plan, ManyEqualSequencesStayWhole) {
  Sequences s;
  for (int i = 0; i < 16; ++i) s.add(1000, 1);
  Plan plan;
  plan_attention(s.input(3, 3, 0, 2), plan);
  EXPECT_EQ(plan.items.size(), 48u);
}

}  // namespace
}  // namespace sluice::cpu
