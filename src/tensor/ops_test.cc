// One text per op, run for the CPU backend with every instruction set that this machine has and judged by ref/.
//
// Tolerances: float32 ops differ from the judge by the order of sums and by exp's last digits only, so 2e-6
// relative to the largest terms; attention reads the same half-precision cache in both, and is held to 2e-5.
#include "tensor/ops_fixture.h"

namespace sluice::test {
namespace {

class Ops : public testing::TestWithParam<Candidate> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Ops, testing::ValuesIn(candidates()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(Ops, RmsNorm) {
  auto cpu = make(GetParam());
  auto ref = make_ref_backend();
  for (int rows : {1, 7, 33}) {
    for (int cols : {16, 72, 576, 640, 2053}) {
      auto x = random_values(size_t(rows * cols), uint32_t(cols), 3);
      auto w = random_values(size_t(cols), 5);
      std::vector<float> got(x.size()), want(x.size());
      cpu->rms_norm({view(x, rows, cols), w.data(), 1e-5f, view(got, rows, cols)});
      ref->rms_norm({view(x, rows, cols), w.data(), 1e-5f, view(want, rows, cols)});
      expect_close(got, want, 1e-6f, 2e-6f);
    }
  }
}

TEST_P(Ops, RmsNormInPlace) {
  auto cpu = make(GetParam());
  auto x = random_values(7 * 72, 1), w = random_values(72, 2);
  std::vector<float> want(x.size());
  cpu->rms_norm({view(x, 7, 72), w.data(), 1e-5f, view(want, 7, 72)});
  cpu->rms_norm({view(x, 7, 72), w.data(), 1e-5f, view(x, 7, 72)});
  EXPECT_EQ(x, want);
}

TEST_P(Ops, AddRmsNorm) {
  auto cpu = make(GetParam());
  auto ref = make_ref_backend();
  for (bool post : {false, true}) {
    for (int rows : {1, 7, 33}) {
      for (int cols : {72, 576, 641}) {
        const size_t n = size_t(rows * cols);
        auto x = random_values(n, 1, 2), residual = random_values(n, 2, 2);
        auto w = random_values(size_t(cols), 3), pw = random_values(size_t(cols), 4);
        auto x2 = x, residual2 = residual;
        std::vector<float> want(n);
        const float* post_weight = post ? pw.data() : nullptr;
        // out may be x
        cpu->add_rms_norm({view(residual, rows, cols), view(x, rows, cols), post_weight, w.data(), 1e-6f,
                           view(x, rows, cols)});
        ref->add_rms_norm({view(residual2, rows, cols), view(x2, rows, cols), post_weight, w.data(), 1e-6f,
                           view(want, rows, cols)});
        expect_close(residual, residual2, 1e-6f, 2e-6f);
        expect_close(x, want, 2e-6f, 4e-6f);
      }
    }
  }
}

// The same sums as with a norm, which is left out.
TEST_P(Ops, AdditionAlone) {
  auto cpu = make(GetParam());
  const auto x = random_values(7 * 72, 1, 2), w = random_values(72, 2);
  auto alone = random_values(7 * 72, 3, 2), normed = alone, out = x, in = x;
  cpu->add_rms_norm({view(normed, 7, 72), view(in, 7, 72), nullptr, w.data(), 1e-6f, view(in, 7, 72)});
  cpu->add_rms_norm({view(alone, 7, 72), view(out, 7, 72), nullptr, nullptr, 1e-6f, view(out, 7, 72)});
  EXPECT_EQ(alone, normed);
  EXPECT_EQ(out, x);
}

TEST_P(Ops, ActMul) {
  auto cpu = make(GetParam());
  auto ref = make_ref_backend();
  for (Activation act : {Activation::silu, Activation::gelu_tanh}) {
    for (int rows : {1, 7, 33}) {
      for (int cols : {5, 256, 1536, 2049}) {
        auto x = random_values(size_t(rows * cols * 2), uint32_t(rows), 4);
        std::vector<float> got(size_t(rows * cols)), want(got.size());
        cpu->act_mul({view(x, rows, 2 * cols), act, view(got, rows, cols)});
        ref->act_mul({view(x, rows, 2 * cols), act, view(want, rows, cols)});
        expect_close(got, want, 1e-7f, 4e-6f);
      }
    }
  }
}

TEST_P(Ops, ActMulAtTheEndsOfItsRange) {
  auto cpu = make(GetParam());
  std::vector<float> x = {-1e30f, -200, -88, 0, 88, 200, 1e30f, 0.5f, 1, 1, 1, 1, 1, 1, 1, 1}, out(8);
  for (Activation act : {Activation::silu, Activation::gelu_tanh}) {
    cpu->act_mul({view(x, 1, 16), act, view(out, 1, 8)});
    for (float y : out) EXPECT_TRUE(std::isfinite(y));
    EXPECT_NEAR(out[1], 0, 1e-30);
    EXPECT_EQ(out[3], 0);
    EXPECT_EQ(out[5], 200);
    EXPECT_EQ(out[6], 1e30f);
  }
}

struct FloatRows final : RowSource {
  int64_t n, k;
  std::vector<float> values;
  FloatRows(int64_t n, int64_t k, uint32_t seed) : n(n), k(k), values(random_values(size_t(n * k), seed)) {}
  int64_t rows() const override { return n; }
  int64_t cols() const override { return k; }
  WeightFormat format() const override { return {WeightElement::f32, 0, false}; }
  void decode(int64_t row, DecodedRow& out) const override {
    out.raw.resize(size_t(k) * 4);
    std::memcpy(out.raw.data(), values.data() + row * k, size_t(k) * 4);
  }
};

TEST_P(Ops, EmbedTakesIdsAndSlots) {
  const FloatRows source(100, 72, 9);
  const Backend::PackSource sources[] = {{&source, {}}};
  std::vector<std::unique_ptr<Backend>> both;
  both.push_back(make(GetParam()));
  both.push_back(make_ref_backend());
  for (auto& b : both) {
    auto table = b->pack(sources);
    ASSERT_TRUE(table.ok());
    const int32_t ids[] = {5, -1 - 2, 99, 0}, last[] = {1, 2, 42};
    BatchInput batch;
    batch.tokens = 4;
    batch.token_ids = ids;
    batch.last_ids = last;
    std::vector<float> out(4 * 72);
    b->embed({*table, batch, 2.0f, view(out, 4, 72)});
    const int expected[] = {5, 42, 99, 0};
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < 72; ++i)
        EXPECT_FLOAT_EQ(out[size_t(t * 72 + i)], 2 * source.values[size_t(expected[t] * 72 + i)]);
    }
  }
}

TEST_P(Ops, GatherRowsAndCopyBlocks) {
  auto cpu = make(GetParam());
  auto x = random_values(33 * 48, 1);
  std::vector<float> out(3 * 48);
  const int32_t index[] = {32, 0, 7};
  cpu->gather_rows(view(x, 33, 48), index, view(out, 3, 48));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(&out[size_t(i * 48)], &x[size_t(index[i] * 48)], 48));
  std::vector<std::byte> pool(4 * 64);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = std::byte(i / 64);
  const std::pair<int32_t, int32_t> copies[] = {{3, 0}, {1, 2}};
  cpu->copy_blocks(pool.data(), 64, copies);
  EXPECT_EQ(pool[63], std::byte(3));
  EXPECT_EQ(pool[2 * 64], std::byte(1));
  EXPECT_EQ(pool[3 * 64], std::byte(3));
}

TEST_P(Ops, RopeWithNormsPartialRotationAndMagnitude) {
  const Heads h{9, 3, 80};
  const KvGeometry g{16, 2, h.kv_heads, h.head_dim, DType::f16};
  Lab cpu(make(GetParam()), g, Step::block_count(2), 1), ref(make_ref_backend(), g, Step::block_count(2), 1);
  const Step step({{0, 33}, {1000, 7}}, {0, 1}, 16);
  const BatchInput batch = step.batch();
  auto qkv = random_values(size_t(batch.tokens * h.width()), 3), qkv2 = qkv;
  auto qn = random_values(80, 4), kn = random_values(80, 5);
  std::vector<float> inv_freq = {1, 0.3f, 0.1f, 0.03f, 0.01f, 0.003f, 0.001f, 0.0003f, 0.9f, 0.8f, 0.7f, 0.6f};
  for (auto [lab, data] : {std::pair(&cpu, &qkv), std::pair(&ref, &qkv2)}) {
    lab->backend->begin_step(batch, g, h.heads);
    lab->backend->rope_store_kv({view(*data, batch.tokens, h.width()), batch, g, lab->kv, h.heads, qn.data(),
                                 kn.data(), 1e-6f, 24, inv_freq.data(), 1.25f});
  }
  const size_t q_and_k = size_t((h.heads + h.kv_heads) * h.head_dim);
  for (int t = 0; t < batch.tokens; ++t) {
    const size_t at = size_t(t * h.width());
    expect_close({&qkv[at], &qkv[at] + q_and_k}, {&qkv2[at], &qkv2[at] + q_and_k}, 2e-6f, 4e-6f);
  }
}

struct AttentionCase {
  Heads heads;
  int block_tokens;
  std::vector<Part> parts;
  AttentionSettings settings;
};

// Fills the caches with each sequence's context, then compares one step. Everything random is the same for
// both.
void compare_attention(const Candidate& candidate, const AttentionCase& c) {
  const KvGeometry g{c.block_tokens, 2, c.heads.kv_heads, c.heads.head_dim, DType::f16};
  const int blocks = Step::block_count(int(c.parts.size()));
  Lab cpu(make(candidate), g, blocks, 1), ref(make_ref_backend(), g, blocks, 1);
  std::vector<int> ids;
  for (size_t s = 0; s < c.parts.size(); ++s) {
    ids.push_back(int(s));
    if (c.parts[s].context == 0) continue;
    const Step fill({{0, c.parts[s].context}}, {int(s)}, c.block_tokens);
    const BatchInput batch = fill.batch();
    auto qkv = random_values(size_t(batch.tokens * c.heads.width()), uint32_t(s) + 50);
    std::vector<float> inv_freq(size_t(c.heads.head_dim / 2), 0.01f);
    for (Lab* lab : {&cpu, &ref}) {
      auto copy = qkv;
      lab->backend->begin_step(batch, g, c.heads.heads);
      lab->backend->rope_store_kv({view(copy, batch.tokens, c.heads.width()), batch, g, lab->kv, c.heads.heads,
                                   nullptr, nullptr, 1e-6f, c.heads.head_dim / 2 * 2, inv_freq.data(), 1.0f});
    }
  }
  const Step step(c.parts, ids, c.block_tokens, c.settings.window);
  auto qkv = random_values(size_t(step.batch().tokens * c.heads.width()), 77), qkv2 = qkv;
  const auto got = store_and_attend(cpu, step, c.heads, qkv, c.settings);
  const auto want = store_and_attend(ref, step, c.heads, qkv2, c.settings);
  expect_close(got, want, 2e-5f, 2e-5f);
}

TEST_P(Ops, AttentionOverHeadShapes) {
  for (const Heads& h : {Heads{9, 3, 64}, Heads{4, 1, 256}, Heads{8, 8, 48}, Heads{4, 2, 8}, Heads{4, 2, 16},
                         Heads{5, 1, 80}, Heads{6, 3, 96}, Heads{16, 2, 128}, Heads{3, 1, 20}}) {
    SCOPED_TRACE(testing::Message() << h.heads << "/" << h.kv_heads << " of " << h.head_dim);
    compare_attention(GetParam(), {h, 16, {{0, 1}, {0, 33}, {130, 1}, {250, 7}}, {}});
  }
}

TEST_P(Ops, AttentionOverDepths) {
  for (int depth : {0, 1, 15, 16, 127, 128, 129, 255, 1000}) {
    SCOPED_TRACE(depth);
    compare_attention(GetParam(), {{9, 3, 64}, 16, {{depth, 1}}, {}});
    compare_attention(GetParam(), {{4, 1, 64}, 32, {{depth, 20}}, {}});
  }
}

TEST_P(Ops, AttentionLongAndShortTogether) {
  compare_attention(GetParam(), {{6, 2, 64}, 16, {{4000, 1}, {0, 1}, {0, 150}, {3993, 7}, {40, 1}}, {}});
}

TEST_P(Ops, AttentionWindowLeavesBlocksBehindAlone) {
  for (int window : {1, 16, 100, 512}) {
    SCOPED_TRACE(window);
    compare_attention(GetParam(), {{4, 1, 64}, 16, {{900, 1}, {700, 40}, {0, 150}, {window, 1}}, {window, 0}});
  }
}

TEST_P(Ops, AttentionSoftcap) {
  compare_attention(GetParam(), {{4, 2, 32}, 16, {{300, 1}, {0, 40}}, {0, 2.0f}});
  compare_attention(GetParam(), {{4, 2, 32}, 16, {{300, 1}, {0, 40}}, {24, 0.5f}});
}

// -- A row's bits depend on nothing but its own sequence.

// The last row's output of a sequence of `total` tokens, given to the cache in steps of the sizes `cuts`, with
// `others` in the same batch each time.
std::vector<float> last_rows(const Candidate& candidate, const Heads& h, int total,
                             const std::vector<int>& cuts, const std::vector<Part>& others,
                             const AttentionSettings& settings) {
  const KvGeometry g{16, 1, h.kv_heads, h.head_dim, DType::f16};
  Lab lab(make(candidate), g, Step::block_count(1 + int(others.size())), 0);
  const auto own = random_values(size_t(total * h.width()), 1);
  std::vector<float> all;
  int done = 0;
  for (int rows : cuts) {
    std::vector<Part> parts = others;
    std::vector<int> ids;
    for (size_t i = 0; i < others.size(); ++i) ids.push_back(int(i) + 1);
    const size_t at = others.size() / 2;  // in the middle of the batch
    parts.insert(parts.begin() + long(at), {done, rows});
    ids.insert(ids.begin() + long(at), 0);
    const Step step(parts, ids, 16);
    int before = 0;
    for (size_t i = 0; i < at; ++i) before += parts[i].rows;
    auto qkv = random_values(size_t(step.batch().tokens * h.width()), uint32_t(rows) + 9);
    std::copy_n(own.begin() + long(done * h.width()), rows * h.width(), qkv.begin() + long(before * h.width()));
    const auto out = store_and_attend(lab, step, h, qkv, settings);
    const int width = h.heads * h.head_dim;
    all.insert(all.end(), out.begin() + long(before * width), out.begin() + long((before + rows) * width));
    done += rows;
  }
  CHECK(done == total);
  return all;
}

TEST_P(Ops, AttentionRowIsTheSameInAnyBatchAndAnyCut) {
  struct Case {
    Heads heads;
    AttentionSettings settings;
  };
  for (const Case& c : {Case{{9, 3, 64}, {}}, Case{{4, 1, 256}, {64, 0}}, Case{{8, 8, 16}, {0, 5.0f}}}) {
    const int total = 333;
    const Candidate alone{GetParam().isa, 1};
    const auto want = last_rows(alone, c.heads, total, {total}, {}, c.settings);
    const std::vector<std::vector<int>> cuts = {
        {total}, {100, 100, 133}, {1, 330, 1, 1}, {17, 16, 150, 149, 1}};
    for (const auto& cut : cuts) {
      for (const auto& others : {std::vector<Part>{}, std::vector<Part>{{0, 1}, {0, 70}, {0, 5}}}) {
        const auto got = last_rows(GetParam(), c.heads, total, cut, others, c.settings);
        ASSERT_EQ(got.size(), want.size());
        ASSERT_TRUE(same_bits(got.data(), want.data(), got.size()))
            << "cut in " << cut.size() << " with " << others.size() << " others";
      }
    }
  }
}

TEST_P(Ops, RowWorkIsTheSameInAnyBatch) {
  auto cpu = make(GetParam());
  const int rows = 300, cols = 576;
  auto x = random_values(size_t(rows * cols * 2), 1), w = random_values(size_t(cols), 2);
  std::vector<float> all(size_t(rows * cols)), one(576);
  cpu->act_mul({view(x, rows, 2 * cols), Activation::silu, view(all, rows, cols)});
  for (int r : {0, 7, 299}) {
    std::vector<float> row(x.begin() + r * 2 * cols, x.begin() + (r + 1) * 2 * cols);
    cpu->act_mul({view(row, 1, 2 * cols), Activation::silu, view(one, 1, cols)});
    EXPECT_TRUE(same_bits(one.data(), &all[size_t(r * cols)], size_t(cols)));
  }
  cpu->rms_norm({view(x, rows, cols), w.data(), 1e-5f, view(all, rows, cols)});
  for (int r : {0, 7, 299}) {
    std::vector<float> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
    cpu->rms_norm({view(row, 1, cols), w.data(), 1e-5f, view(one, 1, cols)});
    EXPECT_TRUE(same_bits(one.data(), &all[size_t(r * cols)], size_t(cols)));
  }
}

TEST(CpuBackend, RefusesWhatItCannotDo) {
  EXPECT_FALSE(make_cpu_backend({-1, ""}).ok());
  EXPECT_FALSE(make_cpu_backend({1, "sse9"}).ok());
  EXPECT_TRUE(make_cpu_backend({1, ""}).ok());
}

TEST(CpuBackend, MemoryIsZeroAndAligned) {
  auto cpu = std::move(*make_cpu_backend({1, ""}));
  for (size_t bytes : {size_t(1), size_t(1000), size_t(4) << 20, (size_t(5) << 20) + 3}) {
    const Buffer b = cpu->alloc(bytes);
    ASSERT_NE(b.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 997) ASSERT_EQ(b.as<uint8_t>()[i], 0);
    b.as<uint8_t>()[bytes - 1] = 1;
  }
  EXPECT_EQ(cpu->alloc(size_t(1) << 60).data(), nullptr);
}

}  // namespace
}  // namespace sluice::test
