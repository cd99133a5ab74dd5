#include "engine/batch_builder.h"

#include <gtest/gtest.h>

#include <deque>

#include "engine/fake_runner.h"
#include "engine/replay_buckets.h"

namespace sluice {
namespace {

TEST(ReplayBuckets, AreCloseWhereStepsAreShort) {
  EXPECT_EQ(replay_buckets(256),
            (std::vector<int>{1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256}));
  EXPECT_EQ(replay_buckets(1), std::vector<int>{1});
  EXPECT_EQ(replay_buckets(64).back(), 64);
  EXPECT_EQ(replay_buckets(100).back(), 100) << "the last one is all that may run";
  EXPECT_EQ(replay_buckets(4096).back(), kMaxReplayRows);
}

TEST(ReplayBuckets, TheSmallestThatHolds) {
  const std::vector<int> buckets = replay_buckets(100);
  for (int rows = 1; rows <= 100; ++rows) {
    const int bucket = replay_bucket(buckets, rows);
    EXPECT_GE(bucket, rows);
    for (int smaller : buckets) EXPECT_TRUE(smaller >= bucket || smaller < rows);
  }
  EXPECT_EQ(replay_bucket(buckets, 101), 0);
  EXPECT_EQ(replay_bucket({}, 1), 0);
}

constexpr int kMaxRunning = 32, kMaxTokens = 64;

// Sequences with their tables, and the plans that a scheduler would make of them.
class Builder : public testing::Test {
 protected:
  LiveRequest& add(int length) {
    Request wish;
    for (int i = 0; i < length; ++i) wish.prompt.push_back(int32_t(requests_.size()) * 100 + i);
    wish.max_tokens = 8;
    LiveRequest& live = requests_.emplace_back(std::move(wish), std::span<const int32_t>(), nullptr);
    live.slot = int(requests_.size()) - 1;
    live.table = &tables_.emplace_back(layout_);
    CHECK(live.table->grow(pool_, length));
    return live;
  }
  void plan(Step& step, std::vector<PlanEntry> entries) {
    step.plan.reset();
    step.record = {};
    for (const PlanEntry& e : entries) {
      step.plan.entries.push_back(e);
      step.plan.tokens += e.count;
    }
  }
  BatchBuilder builder(bool replay) const {
    return BatchBuilder({kMaxTokens, kMaxRunning, replay}, layout_, {});
  }

  const KvLayout layout_{.block_tokens = 4, .windows = {0, 8}, .max_length = 64, .max_step_tokens = kMaxTokens};
  BlockPool pool_{1000};
  std::deque<LiveRequest> requests_;
  std::deque<BlockTable> tables_;
  FakeRunner memory_{layout_, 1, 1, 10};
};

// What lies in the first `count` sequences and rows of two batches is the same, wherever their arrays begin.
void expect_same(const BatchInput& a, const BatchInput& b, int count) {
  ASSERT_EQ(a.groups, b.groups);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(a.token_ids[i], b.token_ids[i]);
    EXPECT_EQ(a.positions[i], b.positions[i]);
    EXPECT_EQ(a.row_sequence[i], b.row_sequence[i]);
    EXPECT_EQ(a.row_starts[i], b.row_starts[i]);
    EXPECT_EQ(a.kv_lengths[i], b.kv_lengths[i]);
    EXPECT_EQ(a.logit_index[i], b.logit_index[i]);
    for (int g = 0; g < a.groups; ++g)
      for (int k = 0; k < std::min(a.table_stride, b.table_stride); ++k)
        EXPECT_EQ(a.tables[g][i * a.table_stride + k], b.tables[g][i * b.table_stride + k]);
  }
  EXPECT_EQ(a.row_starts[count], b.row_starts[count]);
}

TEST_F(Builder, PaddingBelongsToNobody) {
  const BatchBuilder plain = builder(false), padding = builder(true);
  Step a, b;
  b.slot = 1;
  plain.reserve(a, memory_), padding.reserve(b, memory_);
  std::fill(b.staging.begin(), b.staging.end(), 12345);  // of an earlier step
  std::vector<PlanEntry> entries;
  for (int length : {7, 20, 1, 33, 9}) {
    LiveRequest& live = add(length);
    entries.push_back({&live, length - 1, 1, true});
  }
  plan(a, entries), plan(b, entries);
  plain.build(a, pool_), padding.build(b, pool_);

  EXPECT_FALSE(a.replayable);
  EXPECT_EQ(a.batch.tokens, 5);
  EXPECT_EQ(a.batch.one_row_sequences, 5);
  ASSERT_TRUE(b.replayable);
  EXPECT_EQ(b.batch.slot, 1);
  for (int n : {b.batch.tokens, b.batch.sequences, b.batch.logit_rows, b.batch.one_row_sequences})
    EXPECT_EQ(n, 8);
  expect_same(a.batch, b.batch, 5);
  EXPECT_EQ(b.rows.size(), 5u) << "padding wants nothing";
  EXPECT_EQ(a.row_begin, b.row_begin);
  for (int i = 5; i < 8; ++i) {
    EXPECT_EQ(b.batch.token_ids[i], 0);
    EXPECT_EQ(b.batch.positions[i], 0);
    EXPECT_EQ(b.batch.kv_lengths[i], 0);
    EXPECT_EQ(b.batch.row_sequence[i], i);
    EXPECT_EQ(b.batch.row_starts[i], i);
    EXPECT_EQ(b.batch.row_starts[i + 1], i + 1);
    EXPECT_EQ(b.batch.logit_index[i], i);
    for (int g = 0; g < 2; ++g)
      for (int k = 0; k < b.batch.table_stride; ++k)
        EXPECT_EQ(b.batch.tables[g][i * b.batch.table_stride + k], kNoBlock);
  }
  EXPECT_EQ(b.record.tokens, 5);
  EXPECT_EQ(b.record.padding, 3);
  EXPECT_EQ(b.record.logit_rows, 5);
  EXPECT_EQ(b.record.kv_read_bytes, a.record.kv_read_bytes);
}

// Of 200 tokens in blocks of 4 half, in the group that sees everything; the other has its window.
TEST_F(Builder, BytesReadAreThoseOfTheBlocksThatSparseDecodeReads) {
  const KvLayout layout{.block_tokens = 4, .windows = {0, 8}, .max_length = 256, .max_step_tokens = kMaxTokens};
  const ModelCost cost{.kv_bytes_per_token = 10};
  Request wish;
  wish.prompt.assign(200, 1), wish.max_tokens = 8;
  LiveRequest& live = requests_.emplace_back(std::move(wish), std::span<const int32_t>(), nullptr);
  BlockTable table(layout);
  ASSERT_TRUE(table.grow(pool_, 200));
  live.slot = 0, live.table = &table;
  int64_t read[2];
  for (const bool sparse : {false, true}) {
    const BatchBuilder builder({kMaxTokens, kMaxRunning, false, {sparse ? 100 : 0, 0.5f}}, layout, cost);
    Step step;
    builder.reserve(step, memory_);
    plan(step, {{&live, 199, 1, true}});
    builder.build(step, pool_);
    read[sparse] = step.record.kv_read_bytes;
  }
  EXPECT_EQ(read[0], (200 + 8) * 10);
  EXPECT_EQ(read[1], (100 + 8) * 10);
}

TEST_F(Builder, RecordedStepsFindTheirArraysWhereTheyWere) {
  const BatchBuilder builder = this->builder(true);
  Step step;
  builder.reserve(step, memory_);
  builder.build_padding(step, 32);
  const BatchInput recorded = step.batch;
  const size_t flat = step.flat_elements;
  EXPECT_TRUE(step.rows.empty());
  EXPECT_EQ(step.record.padding, 32);

  std::vector<PlanEntry> entries;
  for (int i = 0; i < 17; ++i) {
    LiveRequest& live = add(1 + i * 3);
    entries.push_back({&live, i * 3, 1, true});
    plan(step, entries);
    builder.build(step, pool_);
    ASSERT_TRUE(step.replayable);
    EXPECT_EQ(step.batch.token_ids, recorded.token_ids);
    EXPECT_EQ(step.batch.positions, recorded.positions);
    EXPECT_EQ(step.batch.row_sequence, recorded.row_sequence);
    EXPECT_EQ(step.batch.row_starts, recorded.row_starts);
    EXPECT_EQ(step.batch.kv_lengths, recorded.kv_lengths);
    EXPECT_EQ(step.batch.logit_index, recorded.logit_index);
    for (int g = 0; g < 2; ++g) EXPECT_EQ(step.batch.tables[g], recorded.tables[g]);
    EXPECT_EQ(step.flat_elements, flat);
    EXPECT_LE(step.batch.table_stride, step.table_pitch);
  }
}

TEST_F(Builder, OnlyBatchesOfOneSampledRowEachAreReplayed) {
  const BatchBuilder builder = this->builder(true);
  Step step;
  builder.reserve(step, memory_);
  LiveRequest &a = add(10), &b = add(6);
  plan(step, {{&a, 9, 1, true}, {&b, 0, 6, true}});
  builder.build(step, pool_);
  EXPECT_FALSE(step.replayable) << "a prompt";
  EXPECT_EQ(step.batch.tokens, 7);
  EXPECT_EQ(step.batch.one_row_sequences, 1);
  plan(step, {{&a, 9, 1, true}, {&b, 2, 1, false}});
  builder.build(step, pool_);
  EXPECT_FALSE(step.replayable) << "a chunk of one token";
  EXPECT_EQ(step.batch.logit_rows, 1);
  EXPECT_EQ(step.batch.one_row_sequences, 2);
  plan(step, {{&a, 9, 1, true}, {&b, 5, 1, true}});
  builder.build(step, pool_);
  EXPECT_TRUE(step.replayable);
  EXPECT_EQ(step.batch.tokens, 2);
  EXPECT_EQ(step.record.padding, 0);
}

// The largest batches stay within what was reserved, padded or not.
// So that a device knows how much of small tiers a step's prompts make it unpack.
TEST(BatchBuilderTiers, PromptBlocksCountWherePromptsReadSmallOnes) {
  const KvLayout layout{.block_tokens = 4,
                        .windows = {0, 8},
                        .max_length = 64,
                        .max_step_tokens = 16,
                        .tiering = {.stages = {{{KvTier::int8, 0}}}, .count = 1}};
  BlockPool pool(100, layout.tiering);
  FakeRunner memory(layout, 1, 1, 10);
  const BatchBuilder builder({16, 4, false}, layout, {});
  Step step;
  builder.reserve(step, memory);
  std::deque<BlockTable> tables;
  std::deque<LiveRequest> requests;
  const auto add = [&](int length) -> LiveRequest& {
    Request wish;
    wish.prompt.assign(size_t(length), 1);
    LiveRequest& live = requests.emplace_back(std::move(wish), std::span<const int32_t>(), nullptr);
    live.slot = int(requests.size()) - 1;
    live.table = &tables.emplace_back(layout);
    CHECK(live.table->grow(pool, length));
    return live;
  };
  const auto prompt_blocks = [&](std::vector<PlanEntry> entries) {
    step.plan.reset();
    step.record = {};
    for (const PlanEntry& e : entries) step.plan.entries.push_back(e), step.plan.tokens += e.count;
    builder.build(step, pool);
    return step.batch.prompt_blocks;
  };
  LiveRequest &a = add(22), &b = add(13), &c = add(9);
  const std::vector<PlanEntry> entries = {{&a, 16, 6, true}, {&b, 10, 3, true}, {&c, 8, 1, true}};
  EXPECT_EQ(prompt_blocks(entries), 0) << "all are in full";
  std::vector<BlockMove> moves;
  moves.reserve(16);
  ASSERT_TRUE(c.table->convert(pool, layout.tiering, 8, moves, 16));
  pool.land(moves);
  EXPECT_EQ(prompt_blocks(entries), 0) << "only a sequence with one row has a small one";
  moves.clear();
  ASSERT_TRUE(a.table->convert(pool, layout.tiering, 16, moves, 16));
  pool.land(moves);
  EXPECT_EQ(prompt_blocks(entries), 6 + 4) << "of both prompts";
  EXPECT_EQ(prompt_blocks({{&c, 8, 1, true}, {&b, 10, 3, true}}), 0);
}

TEST_F(Builder, TheLargestBatchFits) {
  for (bool replay : {false, true}) {
    const BatchBuilder builder = this->builder(replay);
    Step step;
    builder.reserve(step, memory_);
    std::vector<PlanEntry> entries;
    for (int i = 0; i < kMaxRunning; ++i) {
      LiveRequest& live = add(60);
      entries.push_back({&live, 59, 1, true});
    }
    plan(step, entries);
    builder.build(step, pool_);
    const int32_t* end =
        step.batch.tables[1] + size_t(step.batch.sequences) * size_t(std::max(step.table_pitch, 15));
    EXPECT_LE(end, step.staging.data() + step.staging.size());
    for (LiveRequest& live : requests_) live.table->clear(pool_);
    requests_.clear(), tables_.clear();
  }
}

}  // namespace
}  // namespace sluice
