// Decode, the plan, and both kinds of rows through class Attention, against ref/. The judge's cache is this
// one's in float32, so both get the same values. What no row may read is poisoned: other layers, the rest of a
// last block, blocks behind the window (not even in the table).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda {
namespace {

using test::DeviceBytes;

struct Case {
  int heads = 32, kv_heads = 8, head_dim = 128, block_tokens = 16;
  int window = 0;
  float softcap = 0;
  std::vector<int> lengths;    // cached tokens, this step's included; 0: padding
  std::vector<int> rows = {};  // of each sequence; empty: one each
  int ctas = 0;                // 0: as many as fit the card
};

constexpr int kLayers = 3, kLayer = 1;
constexpr double kTolerance = 4e-3;  // bf16 output and weights

// A step's inputs, on the host for the judge and on the card.
struct Step {
  Case c;
  KvGeometry geometry;
  std::vector<int32_t> positions, row_sequence, row_starts{0}, table;
  std::vector<float> pool, qkv;
  int table_stride = 0, tokens = 0;
  size_t block_values = 0;

  Step(const Case& made, uint32_t seed) : c(made) {
    geometry = {c.block_tokens, kLayers, c.kv_heads, c.head_dim, DType::f32};
    if (c.rows.empty()) c.rows.assign(c.lengths.size(), 1);
    std::mt19937 rng(seed);
    int blocks = 0;
    for (int length : c.lengths) {
      const int n = (length + c.block_tokens - 1) / c.block_tokens;
      blocks += n;
      table_stride = std::max(table_stride, n + 1);
    }
    std::vector<int32_t> ids(size_t(blocks + 3));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    block_values = KvRows(geometry).block_bytes() / 2;
    pool.assign(ids.size() * block_values, NAN);
    table.assign(c.lengths.size() * size_t(table_stride), -1);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int r = 0; r < c.rows[s]; ++r) {
        positions.push_back(std::max(0, c.lengths[s] - c.rows[s] + r));
        row_sequence.push_back(int32_t(s));
      }
      row_starts.push_back(row_starts.back() + c.rows[s]);
      int seen = c.window > 0 ? std::max(0, c.lengths[s] - c.rows[s] + 1 - c.window) : 0;
      if (c.rows[s] > 1)
        seen -= seen % c.block_tokens;  // prefill reads whole blocks, and gives no weight to a part
      for (int p = seen; p < c.lengths[s]; ++p) {
        int32_t& block = table[s * size_t(table_stride) + size_t(p / c.block_tokens)];
        if (block < 0) block = ids.back(), ids.pop_back();
        fill(block, p % c.block_tokens, uint32_t(rng()));
      }
    }
    tokens = int(positions.size());
    qkv = test::random_bf16(size_t(tokens) * size_t(columns()), seed + 1, 1.5f);
  }

  int columns() const { return (c.heads + 2 * c.kv_heads) * c.head_dim; }
  void fill(int32_t block, int token, uint32_t seed) {
    for (int value = 0; value < 2; ++value)
      for (int g = 0; g < c.kv_heads; ++g) {
        // windows of one long list of random values: drawing afresh for each row took most of the test's time
        static const std::vector<float> values = test::random_bf16(1 << 20, 11);
        const size_t from = (seed + uint32_t(value * c.kv_heads + g) * 7919u) % (values.size() - 256);
        const size_t at =
            size_t(((kLayer * 2 + value) * c.kv_heads + g) * c.block_tokens + token) * size_t(c.head_dim);
        std::copy_n(values.begin() + std::ptrdiff_t(from), c.head_dim,
                    pool.begin() + std::ptrdiff_t(size_t(block) * block_values + at));
      }
  }

  BatchInput batch() const {
    BatchInput b;
    b.tokens = tokens;
    b.sequences = int(c.lengths.size());
    b.one_row_sequences = int(std::count(c.rows.begin(), c.rows.end(), 1));
    b.positions = positions.data();
    b.row_sequence = row_sequence.data();
    b.row_starts = row_starts.data();
    b.kv_lengths = c.lengths.data();
    b.table_stride = table_stride;
    b.tables[0] = table.data();
    b.groups = 1;
    return b;
  }
  AttentionArgs args(const BatchInput& b, const Tensor& q, const KvGeometry& g, std::byte* kv,
                     size_t block_bytes, const Tensor& out) const {
    return {q,        b,         g,  {kv, block_bytes, kLayer, 0}, c.heads, 1 / std::sqrt(float(c.head_dim)),
            c.window, c.softcap, out};
  }

  // Of many rows of a sequence, a sample is judged.
  bool is_judged(int t) const {
    const size_t s = size_t(row_sequence[size_t(t)]);
    const int r = t - row_starts[s];
    return c.rows[s] <= 64 || r < 2 || r >= c.rows[s] - 2 || r % 61 == 0;
  }
  // Rows of padding are zeros; rows that are not judged are missing.
  std::vector<float> judged() {
    const auto ref = make_ref_backend();
    const int64_t width = int64_t(c.heads) * c.head_dim;
    std::vector<float> all;
    for (int t = 0; t < tokens; ++t) {
      if (!is_judged(t)) continue;
      std::vector<float> row(size_t(width), 0);
      if (c.lengths[size_t(row_sequence[size_t(t)])] > 0) {
        BatchInput b = batch();
        b.tokens = 1;
        b.positions += t;
        b.row_sequence += t;
        const Tensor q{qkv.data() + int64_t(t) * columns(), DType::f32, 1, width, columns()};
        ref->attention(args(b, q, geometry, reinterpret_cast<std::byte*>(pool.data()), block_values * 4,
                            test::f32_tensor(row, 1, width)));
      }
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
};

// The step on the card. Its shapes are the step's; its contents may be replaced by those of a step of the same
// shapes.
struct OnCard {
  DeviceBytes positions, row_sequence, row_starts, lengths, table, pool, qkv, out;
  BatchInput batch;
  KvGeometry geometry;

  explicit OnCard(const Step& s)
      : positions(test::upload(s.positions)),
        row_sequence(test::upload(s.row_sequence)),
        row_starts(test::upload(s.row_starts)),
        lengths(test::upload(s.c.lengths)),
        table(test::upload(s.table)),
        pool(test::upload_bf16(s.pool)),
        qkv(test::upload_bf16(s.qkv)),
        out(size_t(s.tokens * s.c.heads * s.c.head_dim) * 2),
        batch(s.batch()),
        geometry(s.geometry) {
    batch.positions = positions.as<int32_t>();
    batch.row_sequence = row_sequence.as<int32_t>();
    batch.row_starts = row_starts.as<int32_t>();
    batch.kv_lengths = lengths.as<int32_t>();
    batch.tables[0] = table.as<int32_t>();
    geometry.dtype = DType::bf16;
  }
  AttentionArgs args(const Step& s) const {
    const int64_t columns = int64_t(s.c.heads) * s.c.head_dim;
    return s.args(batch, test::bf16_tensor(qkv.data(), s.tokens, columns, s.columns()), geometry,
                  pool.as<std::byte>(), s.block_values * 2, test::bf16_tensor(out.data(), s.tokens, columns));
  }
  std::vector<float> result(const Step& s) const {
    return test::download_bf16(out.data(), size_t(s.tokens * s.c.heads * s.c.head_dim));
  }
};

// Plan and scratch for decode alone. Fresh memory is all 0xff, as the scratch has to be.
struct Decoder {
  int ctas;
  DeviceBytes entries, shares, pieces;
  DecodePlan plan;

  static int ctas_for(const Step& s) {
    const int fit = decode_prepare(test::context(), s.geometry, s.c.heads);
    return s.c.ctas ? std::min(s.c.ctas, fit) : fit;
  }
  explicit Decoder(const Step& s)
      : ctas(ctas_for(s)),
        entries(sizeof(DecodeEntry) * (kMaxSequences + 1)),
        shares(sizeof(DecodeShare) * size_t(ctas)),
        pieces(decode_scratch_bytes(s.geometry, s.c.heads, ctas)) {
    plan = {entries.as<DecodeEntry>(), shares.as<DecodeShare>(), ctas, s.c.window};
  }
  void enqueue(const Step& s, const OnCard& card) const {
    make_plans(test::context(), card.batch, {.kv_heads = s.c.kv_heads}, std::span(&plan, 1), {});
    decode(test::context(), card.args(s), plan, pieces.as<PieceColumn>());
    decode(test::context(), card.args(s), plan, pieces.as<PieceColumn>(), true);  // as the next layer
  }
};

// The judged rows: all, or those of sequences with one row.
std::vector<float> rows_of(const Step& s, const std::vector<float>& all, bool one_row_only) {
  std::vector<float> some;
  const int64_t width = int64_t(s.c.heads) * s.c.head_dim;
  for (int t = 0; t < s.tokens; ++t)
    if (s.is_judged(t) && !(one_row_only && s.c.rows[size_t(s.row_sequence[size_t(t)])] > 1))
      some.insert(some.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
  return some;
}

testing::Message describe(const Case& c) {
  return testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", blocks of "
                            << c.block_tokens << ", window " << c.window << ", soft cap " << c.softcap << ", "
                            << c.lengths.size() << " sequences, " << c.ctas << " CTAs";
}

void expect_right(const Case& c, uint32_t seed = 1) {
  SCOPED_TRACE(describe(c));
  Step step(c, seed);
  OnCard card(step);
  Decoder decoder(step);
  decoder.enqueue(step, card);
  const auto got = card.result(step);
  auto want = step.judged();
  const int64_t width = int64_t(c.heads) * c.head_dim;
  for (int t = step.tokens - 1; t >= 0; --t) {
    const size_t s = size_t(step.row_sequence[size_t(t)]);
    const float value = got[size_t(t * width)];
    if (c.lengths[s] == 0) {
      EXPECT_EQ(value, 0) << "padding";
    }
    if (step.c.rows[s] > 1) {  // fewer than 64 in these cases, so all are judged
      EXPECT_TRUE(std::isnan(value)) << "a row of prefill was written";
      want.erase(want.begin() + t * width, want.begin() + (t + 1) * width);
    }
  }
  const auto first = rows_of(step, got, true);
  EXPECT_LT(test::relative_error(first, want), kTolerance);
  decoder.enqueue(step, card);  // scratch was put back; the same bits
  EXPECT_EQ(rows_of(step, card.result(step), true), first);
}

// Decode and prefill together, as the backend runs them.
void expect_right_together(const Case& c, uint32_t seed = 1) {
  SCOPED_TRACE(describe(c));
  Step step(c, seed);
  OnCard card(step);
  test::MemoryBackend memory;
  const auto attention = make_attention();
  WorkspaceShape shape;
  shape.kv = card.geometry;
  shape.max_tokens = step.tokens;
  shape.max_sequences = int(c.lengths.size());
  shape.max_heads = c.heads;
  shape.head_dim = c.head_dim;
  ASSERT_TRUE(attention->reserve(shape, test::context(), memory).ok());
  attention->bind_pool(card.pool.as<std::byte>(), card.pool.bytes(), card.geometry);
  const auto run = [&] {
    attention->begin_step(card.batch, card.geometry, c.heads);
    attention->run(card.args(step));
    return card.result(step);
  };
  const auto got = run();
  for (float value : got) ASSERT_FALSE(std::isnan(value));
  EXPECT_LT(test::relative_error(rows_of(step, got, false), step.judged()), kTolerance);
  EXPECT_EQ(run(), got) << "the window is known by now, and planned for at the step's start";
}

std::vector<int> ragged(int n, int longest, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int> lengths;
  for (int i = 0; i < n; ++i) lengths.push_back(1 + int(rng() % uint32_t(longest)));
  return lengths;
}

TEST(Decode, HeadShapes) {
  for (auto [heads, kv_heads] : {std::pair{9, 3}, {8, 2}, {4, 1}, {32, 8}, {64, 8}, {2, 2}, {16, 1}, {12, 1}})
    for (int head_dim : {64, 128})
      expect_right({heads, kv_heads, head_dim, 16, 0, 0, {1, 15, 16, 17, 64, 65, 200, 577}});
}

TEST(Decode, HeadWidths) {
  for (int head_dim : {8, 16, 32, 64, 80, 96, 128, 256})
    for (auto [heads, kv_heads] : {std::pair{8, 2}, {4, 1}, {20, 2}})
      expect_right({heads, kv_heads, head_dim, 16, 0, 0, {300, 1, 33, 1100}});
}

TEST(Decode, Blocks) {
  for (int block_tokens : {16, 32, 64})
    expect_right({8, 2, 64, block_tokens, 0, 0, {1, 31, 32, 33, 500, 64, 1000}});
}

TEST(Decode, Windows) {
  for (int window : {1, 7, 16, 100, 512})
    for (int block_tokens : {16, 64})
      expect_right({4, 1, 256, block_tokens, window, 0, {1, 16, 100, 511, 512, 513, 700, 2000}});
}

TEST(Decode, SoftCap) {
  expect_right({8, 2, 64, 16, 0, 2.f, {5, 100, 1000}});
  expect_right({8, 2, 256, 16, 64, 50.f, {5, 100, 1000}});
}

TEST(Decode, LongAndRagged) {
  expect_right({8, 2, 128, 16, 0, 0, {4000}});
  expect_right({32, 8, 128, 16, 0, 0, ragged(20, 4000, 5)});
  expect_right({9, 3, 64, 16, 0, 0, ragged(64, 600, 6)});
}

// Few CTAs: shares of many heads and sequences each; more and fewer pieces per head.
TEST(Decode, SharesOfAllSizes) {
  for (int ctas : {1, 2, 3, 7, 31, 100})
    expect_right({8, 2, 64, 16, 0, 0, {700, 1, 64, 300, 1500, 20, 65}, {}, ctas});
}

TEST(Decode, Padding) {
  expect_right({8, 2, 64, 16, 0, 0, {100, 0, 300, 0, 0}});
  expect_right({8, 2, 64, 16, 128, 0, {0}});
  expect_right({8, 2, 128, 16, 0, 0, {0, 0, 1, 0}, {}, 3});
}

TEST(Decode, LeavesPrefillAlone) {
  expect_right({8, 2, 64, 16, 0, 0, {100, 50, 1, 300, 7, 90}, {1, 20, 1, 5, 7, 1}});
}

TEST(Decode, ManySequences) { expect_right({4, 2, 32, 16, 0, 0, ragged(1024, 90, 8)}); }

TEST(Attention, DecodeAndPrefillTogether) {
  for (int head_dim : {64, 80, 96, 128, 256})
    expect_right_together({9, 3, head_dim, 16, 0, 0, {100, 50, 1, 300, 700, 90, 0}, {1, 20, 1, 300, 7, 2, 1}});
  expect_right_together({4, 1, 256, 16, 64, 0, {100, 500, 1, 300}, {1, 200, 1, 1}});
  expect_right_together({8, 2, 64, 32, 0, 5.f, {40, 500, 13}, {1, 200, 13}});
}

TEST(Attention, LongRowsBesideSingleOnes) {
  expect_right_together({4, 2, 64, 16, 0, 0, {4000, 3999, 1, 4000}, {1, 3999, 1, 33}});
  expect_right_together({4, 1, 128, 16, 512, 0, {4000, 3000, 1500}, {4000, 1, 1}});
}

TEST(Attention, OneKindAlone) {
  expect_right_together({32, 8, 128, 16, 0, 0, {100, 50, 577}});
  expect_right_together({32, 8, 128, 16, 0, 0, {100, 50, 177}, {100, 2, 40}});
}

// Chunks of few rows behind long contexts, which the plan cuts into pieces, beside others.
TEST(Attention, ContextsInPieces) {
  for (int head_dim : {64, 128, 256})
    for (auto [heads, kv_heads] : {std::pair{4, 2}, {3, 1}})
      expect_right_together({heads, kv_heads, head_dim, 16, 0, 0, {6000}, {17}});
  expect_right_together({8, 2, 128, 16, 0, 0, {33000, 1, 500}, {107, 1, 33}});
  expect_right_together({4, 1, 128, 32, 0, 0, {9000, 5000, 12, 4321, 2}, {300, 1, 12, 5, 2}});
  expect_right_together({9, 3, 64, 16, 0, 0, {4097, 3000, 2049}, {2, 64, 65}});
  expect_right_together({4, 1, 256, 64, 3000, 0, {7000, 100, 3100}, {33, 7, 129}});
  expect_right_together({4, 2, 128, 16, 4096, 0, {9000}, {40}});
  expect_right_together({4, 2, 64, 16, 0, 30.f, {5000, 60}, {9, 30}});
}

// A recorded step serves other lengths.
TEST(Decode, GraphReplay) {
  Case c{8, 2, 128, 16, 0, 0, {900, 30, 500, 64}};
  Step step(c, 1);
  OnCard card(step);
  Decoder decoder(step);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(test::context().stream, cudaStreamCaptureModeThreadLocal));
  decoder.enqueue(step, card);
  CUDA_CHECK(cudaStreamEndCapture(test::context().stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (const std::vector<int>& lengths : {c.lengths, {1, 700, 0, 12}, {899, 899, 899, 899}}) {
    const std::vector<int32_t> none(step.table.size(), -1);
    c.lengths = lengths;
    Step other(c, 3);
    // the recorded step's memory, the other's contents
    std::vector<int32_t> table(none);
    for (size_t s = 0; s < lengths.size(); ++s)
      std::copy_n(other.table.begin() + std::ptrdiff_t(s) * other.table_stride,
                  std::min(other.table_stride, step.table_stride),
                  table.begin() + std::ptrdiff_t(s) * step.table_stride);
    const DeviceBytes pool = test::upload_bf16(other.pool);
    CUDA_CHECK(cudaMemcpy(card.lengths.data(), lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(card.table.data(), table.data(), table.size() * 4, cudaMemcpyHostToDevice));
    if (pool.bytes() > card.pool.bytes()) continue;
    CUDA_CHECK(cudaMemcpy(card.pool.data(), pool.data(), pool.bytes(), cudaMemcpyDeviceToDevice));
    other.qkv = step.qkv;
    CUDA_CHECK(cudaGraphLaunch(exec, test::context().stream));
    const auto first = card.result(step);
    EXPECT_LT(test::relative_error(first, other.judged()), kTolerance);
    CUDA_CHECK(cudaGraphLaunch(exec, test::context().stream));
    EXPECT_EQ(card.result(step), first);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

// Longest contexts first, every row of every sequence with more than one row exactly once.
TEST(Plan, PrefillTiles) {
  constexpr int kTileRows = 64;
  Case c{2, 1, 16, 16, 0, 0, {700, 1, 65, 2000, 64, 300, 0}, {700, 1, 65, 130, 2, 1, 1}};
  Step step(c, 1);
  OnCard card(step);
  DeviceBytes count(4), items(sizeof(PrefillItem) * 100);
  const PrefillPlan plan{count.as<int32_t>(), items.as<PrefillItem>()};
  make_plans(test::context(), card.batch,
             {.kv_heads = 1, .heads = 2, .block_tokens = 16, .tile_rows = kTileRows}, {}, std::span(&plan, 1));
  const int n = test::download<int32_t>(count.data(), 1)[0];
  ASSERT_EQ(n, 11 + 2 + 3 + 1);
  std::vector<int> taken(size_t(step.tokens));
  int before = 1 << 30;
  for (const PrefillItem& item : test::download<PrefillItem>(items.data(), size_t(n))) {
    const size_t s = size_t(item.sequence);
    ASSERT_GT(item.row_end, item.row_begin);
    ASSERT_LE(item.row_end - item.row_begin, kTileRows);
    ASSERT_TRUE(item.row_begin >= step.row_starts[s] && item.row_end <= step.row_starts[s + 1]);
    for (int r = item.row_begin; r < item.row_end; ++r) ++taken[size_t(r)];
    const int context = step.positions[size_t(item.row_end - 1)] + 1;
    EXPECT_LE(context, before + 2) << "sorted, but for the classes' width";
    before = context;
  }
  for (int r = 0; r < step.tokens; ++r)
    EXPECT_EQ(taken[size_t(r)], c.rows[size_t(step.row_sequence[size_t(r)])] > 1 ? 1 : 0);
}

// Every row of every head belongs to one item; an item has each of its pieces once, and slots of its own for
// their sums; nothing is cut that is shorter than what is not.
void expect_pieces(const std::vector<int>& lengths, const std::vector<int>& rows, int most_heads) {
  constexpr int kHeads = 32;
  const int multiprocessors = test::context().multiprocessors;
  Step step({2, 1, 16, 16, 0, 0, lengths, rows}, 1);
  SCOPED_TRACE(describe(step.c) << ", " << most_heads << " heads a tile");
  OnCard card(step);
  const size_t most = most_prefill_items(step.tokens, int(lengths.size()), 128, multiprocessors);
  DeviceBytes count(4), items(sizeof(PrefillItem) * most);
  const PrefillPlan plan{count.as<int32_t>(), items.as<PrefillItem>()};
  make_plans(test::context(), card.batch,
             {.kv_heads = 8,
              .heads = kHeads,
              .block_tokens = 16,
              .tile_rows = 128,
              .most_heads = most_heads,
              .tile_tokens = 128},
             {}, std::span(&plan, 1));
  const int n = test::download<int32_t>(count.data(), 1)[0];
  ASSERT_LE(size_t(n), most);
  std::map<int, std::vector<PrefillItem>> by_row;
  for (const PrefillItem& item : test::download<PrefillItem>(items.data(), size_t(n)))
    by_row[item.row_begin].push_back(item);
  const int heads = n > 0 ? by_row.begin()->second[0].heads : 1, tasks = kHeads / heads;
  ASSERT_LE(heads, most_heads);
  std::vector<int> slots(size_t(prefill_slots(multiprocessors))), taken(size_t(step.tokens));
  int longest_whole = 0, shortest_cut = 1 << 30;
  for (auto& [row, found] : by_row) {
    std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.piece < b.piece; });
    const PrefillItem first = found[0];
    const int context = step.positions[size_t(first.row_end - 1)] + 1;
    ASSERT_EQ(found.size(), size_t(first.pieces));
    ASSERT_LE(first.row_end - first.row_begin, 128 / heads);
    if (first.pieces > 1)
      shortest_cut = std::min(shortest_cut, context);
    else
      longest_whole = std::max(longest_whole, context);
    for (int r = first.row_begin; r < first.row_end; ++r) ++taken[size_t(r)];
    for (int i = 0; i < first.pieces; ++i) {
      const PrefillItem& item = found[size_t(i)];
      EXPECT_EQ(std::tuple(item.row_end, item.heads, item.piece, item.pieces, item.slot),
                std::tuple(first.row_end, heads, i, first.pieces, first.slot));
      for (int task = 0; first.pieces > 1 && task < tasks; ++task) {
        const size_t slot = size_t(item.slot + i * tasks + task);
        ASSERT_LT(slot, slots.size());
        EXPECT_EQ(slots[slot]++, 0) << "two pieces share a slot";
      }
    }
  }
  for (int r = 0; r < step.tokens; ++r)
    EXPECT_EQ(taken[size_t(r)], rows[size_t(step.row_sequence[size_t(r)])] > 1 ? 1 : 0);
  EXPECT_LT(longest_whole, shortest_cut);
  if (lengths[0] > 5000) {
    EXPECT_LT(shortest_cut, 1 << 30) << "nothing was cut";
  }
}

TEST(Plan, PrefillPieces) {
  for (int most_heads : {1, 2}) {
    expect_pieces({27000}, {107}, most_heads);
    expect_pieces({27000, 1, 500, 64}, {40, 1, 20, 1}, most_heads);
    expect_pieces({16000}, {640}, most_heads);
    expect_pieces({300, 8000, 8000, 8000}, {300, 2, 200, 17}, most_heads);
    expect_pieces({512, 512, 512}, {512, 512, 512}, most_heads);
    expect_pieces({131072}, {2}, most_heads);
    expect_pieces({1, 0}, {1, 1}, most_heads);
  }
}

}  // namespace
}  // namespace sluice::cuda
