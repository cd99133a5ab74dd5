// prefill_wgmma against attention in double precision on the host, over the very bf16 inputs. Of long cases a
// sample of rows is judged (every tile's edges and random ones); that every other row was written, and nothing
// else, is checked for all.
#include <algorithm>
#include <cstring>

#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {

void prefill_wgmma_prepare(const KvGeometry& geometry);

namespace {

struct Rows {
  int rows;
  int before = 0;  // tokens of the sequence that were cached by earlier steps
};
struct Case {
  const char* name;
  int heads, kv_heads, head_dim;
  std::vector<Rows> sequences;
  int window = 0;
  float softcap = 0;
  int block_tokens = 16;
  double sharpness = 1;  // of the queries: large ones make the softmax pick single tokens
  int pieces = 1;        // that every item is cut into, as far as it has tiles
  int tile_heads = 1;    // that share a tile of rows
};

// A step's inputs: keys and values scattered over the blocks of a poisoned pool, queries as columns of a wider
// matrix.
struct Inputs {
  KvGeometry geometry;
  KvLayer layer;
  int tokens = 0, sequences = 0, stride = 0;
  std::vector<int32_t> positions, row_sequence, kv_lengths, table;
  std::vector<PrefillItem> items;
  int slots = 0;  // of pieces
  std::vector<uint16_t> pool;
  std::vector<float> q;
  int q_stride = 0;
};

constexpr int kLayers = 2;
constexpr uint16_t kPoison = 0xffff;  // NaN

int64_t pool_row(const Inputs& in, int block, int kv, int head, int slot) {
  const KvRows rows(in.geometry);
  return int64_t(block) * rows.block_rows() + rows.layer_row(in.layer.layer_in_group) + kv * rows.value_rows() +
         int64_t(head) * in.geometry.block_tokens + slot;
}

void fill_pool(Inputs& in, const Case& c, std::mt19937& rng) {
  const KvRows rows(in.geometry);
  const int bt = c.block_tokens, used = in.sequences * in.stride;
  std::vector<int> order(size_t(used) + 3);
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::shuffle(order.begin(), order.end(), rng);
  in.pool.assign(order.size() * size_t(rows.block_rows()) * size_t(c.head_dim), kPoison);
  in.table.assign(size_t(used), -1);
  std::normal_distribution<float> normal;
  int next = 0;
  for (int s = 0; s < in.sequences; ++s) {
    const Rows& r = c.sequences[size_t(s)];
    const int length = r.before + r.rows, first = c.window > 0 ? std::max(0, r.before - c.window + 1) : 0;
    for (int t = first / bt * bt; t < length; ++t) {
      int32_t& block = in.table[size_t(s) * size_t(in.stride) + size_t(t / bt)];
      if (block < 0) block = order[size_t(next++)];
      for (int kv = 0; kv < 2; ++kv) {
        for (int h = 0; h < c.kv_heads; ++h) {
          uint16_t* to = &in.pool[size_t(pool_row(in, block, kv, h, t % bt)) * size_t(c.head_dim)];
          for (int d = 0; d < c.head_dim; ++d) to[d] = f32_to_bf16(normal(rng));
        }
      }
    }
  }
}

Inputs make_inputs(const Case& c, uint32_t seed) {
  std::mt19937 rng(seed);
  Inputs in;
  in.geometry = {c.block_tokens, kLayers, c.kv_heads, c.head_dim, DType::bf16};
  in.layer.layer_in_group = 1;
  in.layer.block_bytes = KvRows(in.geometry).block_bytes();
  in.sequences = int(c.sequences.size());
  const int tile = prefill_tile_rows(in.geometry) / c.tile_heads;
  std::vector<std::pair<int, PrefillItem>> by_context;
  for (int s = 0; s < in.sequences; ++s) {
    const Rows& r = c.sequences[size_t(s)];
    in.kv_lengths.push_back(r.before + r.rows);
    in.stride = std::max(in.stride, (r.before + r.rows + c.block_tokens - 1) / c.block_tokens);
    for (int t = 0; t < r.rows; t += tile) {
      const int end = std::min(t + tile, r.rows);
      by_context.push_back({-(r.before + end), {s, in.tokens + t, in.tokens + end}});
    }
    for (int t = 0; t < r.rows; ++t) {
      in.positions.push_back(r.before + t);
      in.row_sequence.push_back(s);
    }
    in.tokens += r.rows;
  }
  std::stable_sort(by_context.begin(), by_context.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (auto& [_, item] : by_context) {
    const int first = in.positions[size_t(item.row_begin)], last = in.positions[size_t(item.row_end - 1)];
    const int seen = c.window > 0 ? std::max(0, first - c.window + 1) / c.block_tokens * c.block_tokens : 0;
    item.pieces = std::min(c.pieces, (last - seen) / prefill_tile_tokens(in.geometry) + 1);
    item.heads = c.tile_heads;
    item.slot = in.slots;
    if (item.pieces > 1) in.slots += item.pieces * c.heads / c.tile_heads;
    for (item.piece = 0; item.piece < item.pieces; ++item.piece) in.items.push_back(item);
  }
  fill_pool(in, c, rng);
  in.q_stride = (c.heads + 2 * c.kv_heads) * c.head_dim;
  in.q = test::random_bf16(size_t(in.tokens) * size_t(in.q_stride), seed + 1, float(c.sharpness));
  return in;
}

void attend(const Case& c, const Inputs& in, int row, int head, float* out) {
  const int position = in.positions[size_t(row)], s = in.row_sequence[size_t(row)];
  const int first = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
  const int kv_head = head / (c.heads / c.kv_heads);
  const float* q = &in.q[size_t(row) * size_t(in.q_stride) + size_t(head) * size_t(c.head_dim)];
  const auto cached = [&](int t, int kv) {
    const int block = in.table[size_t(s) * size_t(in.stride) + size_t(t / c.block_tokens)];
    return &in.pool[size_t(pool_row(in, block, kv, kv_head, t % c.block_tokens)) * size_t(c.head_dim)];
  };
  std::vector<double> scores, sum(size_t(c.head_dim), 0.0);
  double top = -INFINITY, total = 0;
  for (int t = first; t <= position; ++t) {
    double dot = 0;
    const uint16_t* k = cached(t, 0);
    for (int d = 0; d < c.head_dim; ++d) dot += double(q[d]) * double(bf16_to_f32(k[d]));
    dot /= std::sqrt(double(c.head_dim));
    if (c.softcap > 0) dot = double(c.softcap) * std::tanh(dot / double(c.softcap));
    scores.push_back(dot);
    top = std::max(top, dot);
  }
  for (int t = first; t <= position; ++t) {
    const double w = std::exp(scores[size_t(t - first)] - top);
    total += w;
    const uint16_t* v = cached(t, 1);
    for (int d = 0; d < c.head_dim; ++d) sum[size_t(d)] += w * double(bf16_to_f32(v[d]));
  }
  for (int d = 0; d < c.head_dim; ++d) out[d] = float(sum[size_t(d)] / total);
}

// Rows and heads to judge: all of a small step; of a large one the first and last rows of tiles, and random
// ones.
std::vector<std::pair<int, int>> judged(const Case& c, const Inputs& in, uint32_t seed) {
  std::vector<std::pair<int, int>> chosen;
  double cost = 0;
  for (int32_t p : in.positions) cost += double(p + 1) * c.heads * c.head_dim;
  std::mt19937 rng(seed);
  if (cost < 3e8) {
    for (int t = 0; t < in.tokens; ++t) {
      for (int h = 0; h < c.heads; ++h) chosen.push_back({t, h});
    }
    return chosen;
  }
  for (const PrefillItem& item : in.items) {
    chosen.push_back({item.row_begin, int(rng() % uint32_t(c.heads))});
    chosen.push_back({item.row_end - 1, int(rng() % uint32_t(c.heads))});
    chosen.push_back({item.row_begin + int(rng() % uint32_t(item.row_end - item.row_begin)),
                      int(rng() % uint32_t(c.heads))});
  }
  for (int i = 0; i < 200; ++i) {
    chosen.push_back({int(rng() % uint32_t(in.tokens)), int(rng() % uint32_t(c.heads))});
  }
  return chosen;
}

std::vector<uint16_t> run_case(const Case& c, Inputs& in, int out_stride) {
  const auto positions = test::upload(in.positions), row_sequence = test::upload(in.row_sequence),
             kv_lengths = test::upload(in.kv_lengths), table = test::upload(in.table),
             items = test::upload(in.items), pool = test::upload(in.pool), q = test::upload_bf16(in.q);
  const auto count = test::upload(std::vector<int32_t>{int32_t(in.items.size())});
  const test::DeviceBytes out(size_t(in.tokens + 1) * size_t(out_stride) * 2);
  in.layer.pool = pool.as<std::byte>();
  BatchInput batch;
  batch.tokens = in.tokens;
  batch.sequences = in.sequences;
  batch.positions = positions.as<int32_t>();
  batch.row_sequence = row_sequence.as<int32_t>();
  batch.kv_lengths = kv_lengths.as<int32_t>();
  batch.table_stride = in.stride;
  batch.groups = 1;
  batch.tables[0] = table.as<int32_t>();
  const AttentionArgs a{test::bf16_tensor(q.data(), in.tokens, int64_t(c.heads) * c.head_dim, in.q_stride),
                        batch,
                        in.geometry,
                        in.layer,
                        c.heads,
                        float(1 / std::sqrt(double(c.head_dim))),
                        c.window,
                        c.softcap,
                        test::bf16_tensor(out.data(), in.tokens, int64_t(c.heads) * c.head_dim, out_stride)};
  prefill_wgmma_prepare(in.geometry);
  const CUtensorMap map = prefill_pool_map(pool.as<std::byte>(), in.pool.size() * 2, in.geometry);
  const test::DeviceBytes sums(prefill_slot_bytes(in.geometry) * size_t(in.slots));
  const std::vector<int32_t> none(size_t(in.slots * PrefillPieces::kWarps), 0);
  const auto arrived = test::upload(none);
  prefill_wgmma(test::context(), a, {count.as<int32_t>(), items.as<PrefillItem>()},
                {sums.as<float4>(), arrived.as<int32_t>()}, map);
  const auto rows = test::download<uint16_t>(out.data(), size_t(in.tokens + 1) * size_t(out_stride));
  EXPECT_EQ(test::download<int32_t>(arrived.data(), none.size()), none)
      << "a launch leaves counters as they were";
  return rows;
}

void check_case(const Case& c, uint32_t seed) {
  SCOPED_TRACE(c.name);
  Inputs in = make_inputs(c, seed);
  const int width = c.heads * c.head_dim, out_stride = width + 8;
  const std::vector<uint16_t> out = run_case(c, in, out_stride);
  for (int t = 0; t <= in.tokens; ++t) {  // what lies between the rows, and behind them, stays as it was
    for (int i = t < in.tokens ? width : 0; i < out_stride; ++i) {
      ASSERT_EQ(out[size_t(t) * size_t(out_stride) + size_t(i)], kPoison) << "row " << t << " column " << i;
    }
    for (int i = 0; t < in.tokens && i < width; ++i) {
      ASSERT_TRUE(std::isfinite(bf16_to_f32(out[size_t(t) * size_t(out_stride) + size_t(i)])))
          << "row " << t << " column " << i;
    }
  }
  std::vector<float> got, want;
  double worst = 0;
  for (auto [t, h] : judged(c, in, seed)) {
    std::vector<float> w(size_t(c.head_dim)), g(size_t(c.head_dim));
    attend(c, in, t, h, w.data());
    for (int d = 0; d < c.head_dim; ++d) {
      g[size_t(d)] = bf16_to_f32(out[size_t(t) * size_t(out_stride) + size_t(h * c.head_dim + d)]);
    }
    worst = std::max(worst, test::relative_error(g, w));
    got.insert(got.end(), g.begin(), g.end());
    want.insert(want.end(), w.begin(), w.end());
  }
  // bf16 weights and outputs: 2^-9 each at the worst element, half that in the norm.
  const double error = test::relative_error(got, want);
  EXPECT_LT(error, 4e-3);
  EXPECT_LT(worst, 1.2e-2);  // of any one row and head
  std::printf("  %-28s error %.2e, worst row %.2e over %zu rows\n", c.name, error, worst,
              got.size() / size_t(c.head_dim));
}

TEST(PrefillWgmma, FewRows) {
  check_case({"2 rows", 4, 1, 128, {{2}}}, 1);
  check_case({"7 rows", 9, 3, 64, {{7}}}, 2);
  check_case({"33 rows after 100", 9, 3, 64, {{33, 100}}}, 3);
  check_case({"1 row after 15", 4, 1, 128, {{1, 15}}}, 4);
  check_case({"16 rows, block full", 4, 1, 128, {{16}}}, 5);
  Case pieces{"33 rows after 700 in pieces", 3, 1, 64, {{33, 700}}};
  pieces.pieces = 3;
  check_case(pieces, 6);
  Case shared{"9 rows after 300, shared tiles in pieces", 4, 1, 128, {{9, 300}}};
  shared.tile_heads = shared.pieces = 2;
  check_case(shared, 7);
}

TEST(PrefillWgmma, TileEdges) {
  check_case({"127", 4, 1, 128, {{127}}}, 10);
  check_case({"128", 4, 1, 128, {{128}}}, 11);
  check_case({"129", 4, 1, 128, {{129}}}, 12);
  check_case({"300 after 77", 4, 2, 128, {{300, 77}}}, 13);
  check_case({"130 after 1000, 64 wide", 8, 2, 64, {{130, 1000}}}, 14);
}

TEST(PrefillWgmma, RaggedBatch) {
  const std::vector<Rows> rows = {{2}, {129, 64}, {7, 500}, {33}, {128, 1}, {3, 15}, {257, 255}, {64, 64}};
  check_case({"ragged 128", 32, 8, 128, rows}, 20);
  check_case({"ragged 64", 9, 3, 64, rows}, 21);
  check_case({"ragged 256", 4, 1, 256, rows}, 22);
  check_case({"ragged 128, blocks of 32", 8, 2, 128, rows, 0, 0, 32}, 23);
  check_case({"ragged 64, blocks of 64", 8, 2, 64, rows, 0, 0, 64}, 24);
  check_case({"ragged 256, blocks of 64", 4, 1, 256, rows, 0, 0, 64}, 25);
}

TEST(PrefillWgmma, Windows) {
  const std::vector<Rows> rows = {{2, 900}, {200, 1000}, {129}, {40, 15}};
  for (int window : {1, 16, 17, 100, 512}) {
    check_case({"window, 128", 4, 2, 128, rows, window}, 30);
    check_case({"window, 256", 4, 1, 256, rows, window}, 31);
    check_case({"window, 64, blocks of 32", 9, 3, 64, rows, window, 0, 32}, 32);
  }
}

TEST(PrefillWgmma, Softcap) {
  const std::vector<Rows> rows = {{150, 300}, {40}};
  check_case({"cap 50", 4, 2, 128, rows, 0, 50}, 40);
  check_case({"cap 2, sharp", 4, 2, 256, rows, 0, 2, 16, 8}, 41);
  check_case({"cap 30, window", 4, 2, 64, rows, 100, 30, 16, 4}, 42);
}

TEST(PrefillWgmma, SharpScores) {
  check_case({"sharp", 4, 2, 128, {{200, 333}}, 0, 0, 16, 20}, 50);
  check_case({"sharp 64", 4, 2, 64, {{200, 333}}, 0, 0, 16, 20}, 51);
}

TEST(PrefillWgmma, Long) {
  check_case({"4000 rows", 32, 8, 128, {{4000}}}, 60);
  check_case({"4000 rows, window 512", 8, 2, 128, {{4000}}, 512}, 61);
  check_case({"4000 after 1000, window 4096", 8, 2, 64, {{4000, 1000}}, 4096}, 62);
  check_case({"2048 after 6000, 256 wide", 4, 1, 256, {{2048, 6000}, {5, 100}}}, 63);
}

// Contexts in pieces: more tasks than the card takes at once and fewer, pieces of one tile, pieces of which
// some rows or a whole warpgroup see nothing.
TEST(PrefillWgmma, Pieces) {
  const auto cut = [](Case c, int pieces, int seed) {
    c.pieces = pieces;
    check_case(c, uint32_t(seed));
  };
  const std::vector<Rows> ragged = {{2},      {129, 64}, {7, 500},   {33, 1900},
                                    {128, 1}, {3, 1500}, {257, 255}, {64, 1000}};
  for (int pieces : {2, 5, 16}) {
    cut({"pieces, 128", 8, 2, 128, ragged}, pieces, 80);
    cut({"pieces, 64", 9, 3, 64, ragged}, pieces, 81);
    cut({"pieces, 256", 4, 1, 256, ragged}, pieces, 82);
    cut({"pieces, 128 alone, blocks of 64", 3, 3, 128, ragged, 0, 0, 64}, pieces, 83);
    cut({"pieces, window 700", 4, 2, 128, ragged, 700}, pieces, 84);
    cut({"pieces, window 100, 256 wide", 4, 2, 256, ragged, 100}, pieces, 85);
    cut({"pieces, cap", 4, 2, 64, ragged, 0, 30, 16, 4}, pieces, 86);
    cut({"pieces, sharp", 4, 2, 128, ragged, 0, 0, 16, 20}, pieces, 87);
  }
  cut({"107 rows after 26000, 4 pieces", 32, 8, 128, {{107, 26000}}}, 4, 88);
  cut({"5 rows after 33000, 16 pieces", 4, 2, 128, {{5, 33000}}}, 16, 89);
  cut({"640 rows after 8000, 4 pieces", 32, 8, 128, {{640, 8000}}}, 4, 90);
}

// Two query heads to a tile of rows, in clusters (of four heads of one kv head) and alone (soft caps).
TEST(PrefillWgmma, HeadsShareTiles) {
  const std::vector<Rows> ragged = {{2},     {65, 64},  {7, 500},   {33, 1900},
                                    {64, 1}, {3, 1500}, {257, 255}, {64, 1000}};
  const auto shared = [](Case c, int pieces, int seed) {
    c.pieces = pieces;
    c.tile_heads = 2;
    check_case(c, uint32_t(seed));
  };
  for (int pieces : {1, 2, 5}) {
    shared({"shared, 128", 8, 2, 128, ragged}, pieces, 92);
    shared({"shared, 64", 4, 1, 64, ragged}, pieces, 93);
    shared({"shared, 256", 8, 1, 256, ragged}, pieces, 94);
    shared({"shared, window 700, blocks of 32", 8, 2, 128, ragged, 700, 0, 32}, pieces, 95);
    shared({"shared, cap", 4, 1, 128, ragged, 0, 30, 16, 4}, pieces, 96);
    shared({"shared, cap, 256", 8, 2, 256, ragged, 300, 30, 16, 4}, pieces, 97);
  }
  shared({"64 rows after 26000, 4 heads, 8 pieces", 32, 8, 128, {{64, 26000}}}, 8, 98);
}

// Two runs give the same bits: no race decides anything.
TEST(PrefillWgmma, Repeats) {
  Case c{"repeat", 32, 8, 128, {{700, 300}, {130}, {5, 2000}, {512}}};
  for (int pieces : {1, 5}) {
    c.pieces = pieces;
    Inputs in = make_inputs(c, 70);
    const auto first = run_case(c, in, c.heads * c.head_dim);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(first, run_case(c, in, c.heads * c.head_dim));
  }
}

}  // namespace
}  // namespace sluice::cuda
