// Row ops against ref/ in float32. Inputs are values that bf16 holds exactly, so an element may differ by its
// own rounding to bf16 (2^-8 of it) and little more.
#include "tensor/cuda/rows/rows.h"

#include "tensor/cuda/testing/memory_backend.h"
#include "tensor/cuda/testing/paged.h"

namespace sluice::cuda::test {
namespace {

const std::vector<int> kRows = {1, 7, 33, 257};
const std::vector<int> kColumns = {64, 72, 576, 640, 4096, 8192};

// `slack`: error of the arithmetic before the last rounding, in units of the values' size.
void expect_rounded(const std::vector<float>& got, const std::vector<float>& want, float slack = 2e-6f) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::fabs(got[i] - want[i]), 0x1.02p-8f * std::fabs(want[i]) + slack)
        << "at " << i << ": got " << got[i] << ", want " << want[i];
  }
}

std::vector<float> random_f32(size_t n, uint32_t seed) {
  std::vector<float> v = random_bf16(n, seed);
  for (size_t i = 0; i < n; ++i) v[i] = 1 + 0.3f * v[i] + 1e-4f * float(i % 7);
  return v;
}

// Float32 that bf16 does not hold.
std::vector<float> residual_of(size_t n, uint32_t seed, float scale) {
  std::vector<float> v = random_bf16(n, seed, scale);
  for (size_t i = 0; i < n; ++i) v[i] *= 1 + 1e-5f * float(i % 97);
  return v;
}
Tensor on_card(const DeviceBytes& f32, int64_t rows, int64_t columns) {
  return {f32.data(), DType::f32, rows, columns, columns};
}

TEST(CudaRows, RmsNorm) {
  const auto judge = make_ref_backend();
  uint32_t seed = 1;
  for (int rows : kRows) {
    for (int columns : kColumns) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      const size_t n = size_t(rows) * size_t(columns);
      std::vector<float> x = residual_of(n, ++seed, 3), weight = random_f32(size_t(columns), ++seed), want(n);
      judge->rms_norm({f32_tensor(x, rows, columns), weight.data(), 1e-5f, f32_tensor(want, rows, columns)});
      const DeviceBytes dx = upload(x), dw = upload(weight), out(n * 2);
      rms_norm(context(),
               {on_card(dx, rows, columns), dw.as<float>(), 1e-5f, bf16_tensor(out.data(), rows, columns)});
      expect_rounded(download_bf16(out.data(), n), want);
      EXPECT_EQ(download<float>(dx.data(), n), x);
    }
  }
}

void check_add_rms_norm(int rows, int columns, bool with_post, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns << (with_post ? ", with post norm" : ""));
  const auto judge = make_ref_backend();
  const size_t n = size_t(rows) * size_t(columns);
  std::vector<float> x = random_bf16(n, seed, 0.5f), residual = residual_of(n, seed + 1, 4);
  std::vector<float> weight = random_f32(size_t(columns), seed + 2),
                     post = random_f32(size_t(columns), seed + 3);
  const DeviceBytes dx = upload_bf16(x), dr = upload(residual), dw = upload(weight), dp = upload(post);
  std::vector<float> want(n);
  judge->add_rms_norm({f32_tensor(residual, rows, columns), f32_tensor(x, rows, columns),
                       with_post ? post.data() : nullptr, weight.data(), 1e-6f,
                       f32_tensor(want, rows, columns)});
  // In place, as the decoder calls it.
  add_rms_norm(context(), {on_card(dr, rows, columns), bf16_tensor(dx.data(), rows, columns),
                           with_post ? dp.as<float>() : nullptr, dw.as<float>(), 1e-6f,
                           bf16_tensor(dx.data(), rows, columns)});
  const auto sums = download<float>(dr.data(), n);
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(sums[i], residual[i], 2e-6f * std::fabs(residual[i]) + 1e-5f) << i;
  expect_rounded(download_bf16(dx.data(), n), want, 1e-5f);
}

TEST(CudaRows, AddRmsNorm) {
  uint32_t seed = 100;
  for (int rows : kRows) {
    for (int columns : kColumns) {
      check_add_rms_norm(rows, columns, false, seed += 10);
      check_add_rms_norm(rows, columns, true, seed += 10);
    }
  }
  check_add_rms_norm(3, 16384, true, 7);
  check_add_rms_norm(3, 2048, false, 8);
}

// The same sums as with a norm, which is left out.
TEST(CudaRows, AdditionAlone) {
  for (int columns : {576, 4096}) {
    const size_t n = size_t(33) * size_t(columns);
    const auto x = random_bf16(n, 5), residual = residual_of(n, 6, 4), weight = random_f32(size_t(columns), 7);
    const DeviceBytes in = upload_bf16(x), out = upload_bf16(x), alone = upload(residual),
                      normed = upload(residual), w = upload(weight);
    add_rms_norm(context(), {on_card(normed, 33, columns), bf16_tensor(in.data(), 33, columns), nullptr,
                             w.as<float>(), 1e-6f, bf16_tensor(in.data(), 33, columns)});
    add_rms_norm(context(), {on_card(alone, 33, columns), bf16_tensor(out.data(), 33, columns), nullptr,
                             nullptr, 1e-6f, bf16_tensor(out.data(), 33, columns)});
    EXPECT_EQ(download<float>(alone.data(), n), download<float>(normed.data(), n));
    EXPECT_EQ(download_bf16(out.data(), n), x);
  }
}

TEST(CudaRows, EqualRowsGiveEqualBitsInAnyBatch) {
  constexpr int kRowCount = 300, kWidth = 4096;
  const std::vector<float> one = random_bf16(kWidth, 5), weight = random_f32(kWidth, 6);
  std::vector<float> many;
  for (int r = 0; r < kRowCount; ++r) many.insert(many.end(), one.begin(), one.end());
  const DeviceBytes x1 = upload_bf16(one), x = upload_bf16(many), w = upload(weight), r1 = upload(one),
                    r = upload(many);
  add_rms_norm(context(), {on_card(r1, 1, kWidth), bf16_tensor(x1.data(), 1, kWidth), nullptr, w.as<float>(),
                           1e-5f, bf16_tensor(x1.data(), 1, kWidth)});
  add_rms_norm(context(), {on_card(r, kRowCount, kWidth), bf16_tensor(x.data(), kRowCount, kWidth), nullptr,
                           w.as<float>(), 1e-5f, bf16_tensor(x.data(), kRowCount, kWidth)});
  const auto want = download<uint16_t>(x1.data(), kWidth),
             got = download<uint16_t>(x.data(), kRowCount * kWidth);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i % kWidth]);
}

TEST(CudaRows, ActMul) {
  const auto judge = make_ref_backend();
  uint32_t seed = 300;
  for (Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    for (int rows : kRows) {
      for (int columns : {8, 72, 1536, 14336}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns);
        std::vector<float> in = random_bf16(size_t(rows) * size_t(columns) * 2, ++seed, 3);
        in[0] = 300, in[1] = -300, in[2] = 0, in[3] = -12;
        std::vector<float> want(size_t(rows) * size_t(columns));
        judge->act_mul({f32_tensor(in, rows, 2 * columns), activation, f32_tensor(want, rows, columns)});
        const DeviceBytes d = upload_bf16(in), out(want.size() * 2);
        act_mul(context(),
                {bf16_tensor(d.data(), rows, 2 * columns), activation, bf16_tensor(out.data(), rows, columns)});
        expect_rounded(download_bf16(out.data(), want.size()), want, 3e-5f);
      }
    }
  }
}

// Written by the way, or by quantize_rows from what was written: the same bytes.
class QuantizedCopy : public testing::TestWithParam<Factors> {
 protected:
  struct Rows {
    DeviceBytes bytes, scales;
    QuantizedRows view;
    Rows(Factors factors, int64_t rows, int64_t cols)
        : bytes(size_t(rows * cols)),
          scales(size_t(rows * ((cols + 127) / 128)) * sizeof(float)),
          view{bytes.data(), scales.as<float>(), factors, rows, cols, rows} {}
  };
  // `out` [rows, cols] was written beside `copy`.
  static void expect_copy(const Rows& copy, const DeviceBytes& out) {
    const auto [rows, cols] = std::pair{copy.view.rows, copy.view.cols};
    const Rows want(copy.view.factors, rows, cols);
    quantize_rows(context(), bf16_tensor(out.data(), rows, cols), want.view);
    const size_t scales = size_t(rows * (copy.view.factors == Factors::fp8_blocks ? (cols + 127) / 128 : 1));
    EXPECT_EQ(download<uint8_t>(copy.bytes.data(), copy.bytes.bytes()),
              download<uint8_t>(want.bytes.data(), want.bytes.bytes()));
    EXPECT_EQ(download<float>(copy.scales.data(), scales), download<float>(want.scales.data(), scales));
  }
};

TEST_P(QuantizedCopy, OfNorms) {
  uint32_t seed = 900;
  for (const int rows : kRows)
    for (const int columns : {64, 272, 576, 4096, 8192})
      for (const bool post : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", post norm " << post);
        const size_t n = size_t(rows) * size_t(columns);
        auto x = random_bf16(n, ++seed);
        std::fill_n(x.begin(), columns, 0.f);
        auto residual = residual_of(n, ++seed, 2);
        std::fill_n(residual.begin(), columns, 0.f);  // a row of zeros
        const DeviceBytes dx = upload_bf16(x), dr = upload(residual),
                          weight = upload(random_f32(size_t(columns), ++seed)), out(n * 2);
        const Rows of_norm(GetParam(), rows, columns), of_sum(GetParam(), rows, columns);
        rms_norm(
            context(),
            {on_card(dr, rows, columns), weight.as<float>(), 1e-5f, bf16_tensor(out.data(), rows, columns)},
            &of_norm.view);
        expect_copy(of_norm, out);
        add_rms_norm(context(),
                     {on_card(dr, rows, columns), bf16_tensor(dx.data(), rows, columns),
                      post ? weight.as<float>() : nullptr, weight.as<float>(), 1e-5f,
                      bf16_tensor(dx.data(), rows, columns)},
                     &of_sum.view);
        expect_copy(of_sum, dx);
      }
}

// Few rows are spread over clusters of blocks, many are not.
TEST_P(QuantizedCopy, OfActivations) {
  uint32_t seed = 950;
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh})
    for (const int rows : {1, 7, 64, 65, 257})
      for (const int columns : {16, 272, 1536, 8192, 14336, 28672}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns);
        const DeviceBytes in = upload_bf16(random_bf16(size_t(rows) * size_t(columns) * 2, ++seed, 3)),
                          out(size_t(rows) * size_t(columns) * 2), plain(size_t(rows) * size_t(columns) * 2);
        const ActMulArgs args{bf16_tensor(in.data(), rows, 2 * columns), activation,
                              bf16_tensor(out.data(), rows, columns)};
        const Rows copy(GetParam(), rows, columns), alone(GetParam(), rows, columns);
        act_mul_quantized(context(), args, copy.view, true);
        act_mul(context(), {args.gate_up, activation, bf16_tensor(plain.data(), rows, columns)});
        const size_t n = size_t(rows) * size_t(columns);
        EXPECT_EQ(download<uint16_t>(out.data(), n), download<uint16_t>(plain.data(), n));
        expect_copy(copy, out);
        CUDA_CHECK(cudaMemset(out.data(), 0xff, n * 2));
        act_mul_quantized(context(), args, alone.view, false);
        EXPECT_EQ(download<uint16_t>(out.data(), n), std::vector<uint16_t>(n, 0xffff)) << "written unasked";
        EXPECT_EQ(download<uint8_t>(alone.bytes.data(), n), download<uint8_t>(copy.bytes.data(), n));
      }
}

INSTANTIATE_TEST_SUITE_P(
    , QuantizedCopy, testing::Values(Factors::fp8, Factors::fp8_blocks, Factors::int8), [](const auto& of) {
      return std::string(of.param == Factors::fp8 ? "fp8" : of.param == Factors::int8 ? "int8" : "fp8_blocks");
    });

TEST(CudaRows, EmbedReadsIdsOrTheLastSampled) {
  constexpr int kVocab = 500;
  for (int columns : {64, 576, 4096}) {
    for (int rows : kRows) {
      std::vector<float> table = random_bf16(size_t(kVocab) * size_t(columns), 9);
      std::mt19937 rng(10);
      std::vector<int32_t> last(16), ids(static_cast<size_t>(rows));
      for (int32_t& id : last) id = int32_t(rng() % kVocab);
      for (int32_t& id : ids) id = rng() % 3 ? int32_t(rng() % kVocab) : -1 - int32_t(rng() % 16);
      const float scale = columns == 64 ? 8 : columns == 576 ? 25.298221f : 1;
      const DeviceBytes d_ids = upload(ids), d_last = upload(last);
      const DeviceBytes out(size_t(rows) * size_t(columns) * 4);
      MemoryBackend memory;
      Weight weight;
      weight.rows = kVocab, weight.cols = columns;
      weight.parts.push_back({0, kVocab, {WeightElement::bf16, 0, false}, memory.alloc(table.size() * 2)});
      const DeviceBytes d_table = upload_bf16(table);
      CUDA_CHECK(
          cudaMemcpy(weight.parts[0].data.data(), d_table.data(), table.size() * 2, cudaMemcpyDeviceToDevice));
      BatchInput batch;
      batch.tokens = rows, batch.token_ids = d_ids.as<int32_t>(), batch.last_ids = d_last.as<int32_t>();
      embed(context(), {weight, batch, scale, on_card(out, rows, columns)});
      const auto got = download<float>(out.data(), size_t(rows) * size_t(columns));
      std::vector<float> want;
      for (int32_t id : ids) {
        const float* from = table.data() + size_t(id < 0 ? last[size_t(-1 - id)] : id) * size_t(columns);
        for (int c = 0; c < columns; ++c) want.push_back(from[c] * scale);
      }
      ASSERT_EQ(got, want) << rows << " x " << columns;
    }
  }
}

TEST(CudaRows, GatherRows) {
  for (int columns : {72, 4096}) {
    const std::vector<float> x = random_bf16(40 * size_t(columns), 11);
    const std::vector<int32_t> index = {39, 0, 7, 7, 12};
    const DeviceBytes dx = upload_bf16(x), di = upload(index), out(5 * size_t(columns) * 2);
    gather_rows(context(), bf16_tensor(dx.data(), 40, columns), di.as<int32_t>(),
                bf16_tensor(out.data(), 5, columns));
    const auto got = download_bf16(out.data(), 5 * size_t(columns));
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], x[size_t(index[i / size_t(columns)]) * size_t(columns) + i % size_t(columns)]);
    const std::vector<float> f = residual_of(x.size(), 13, 1);
    const DeviceBytes df = upload(f), out_f32(5 * size_t(columns) * 4);
    gather_rows(context(), on_card(df, 40, columns), di.as<int32_t>(), on_card(out_f32, 5, columns));
    const auto rows = download<float>(out_f32.data(), 5 * size_t(columns));
    for (size_t i = 0; i < rows.size(); ++i)
      ASSERT_EQ(rows[i], f[size_t(index[i / size_t(columns)]) * size_t(columns) + i % size_t(columns)]);
  }
}

TEST(CudaRows, CopyBlocks) {
  for (size_t block : {size_t(48), size_t(16384) + 16, size_t(1) << 20}) {
    std::vector<uint8_t> pool(block * 7);
    std::mt19937 rng(12);
    for (uint8_t& b : pool) b = uint8_t(rng());
    const std::vector<int32_t> pairs = {6, 0, 3, 2, 6, 5};
    const DeviceBytes d = upload(pool), dp = upload(pairs);
    copy_blocks(context(), d.as<std::byte>(), block, dp.as<int32_t>(), 3);
    for (size_t p = 0; p < 3; ++p)
      std::memcpy(&pool[size_t(pairs[2 * p + 1]) * block], &pool[size_t(pairs[2 * p]) * block], block);
    ASSERT_TRUE(download<uint8_t>(d.data(), pool.size()) == pool);
  }
}

struct Moments {
  double mean = 0, deviation = 0, fourth = 0, neighbours = 0, largest = 0;
};
Moments moments(const std::vector<float>& v) {
  Moments m;
  const double n = double(v.size());
  for (float x : v) m.mean += x / n;
  for (size_t i = 0; i < v.size(); ++i) {
    m.deviation += double(v[i]) * v[i] / n;
    m.fourth += std::pow(double(v[i]), 4) / n;
    if (i > 0) m.neighbours += double(v[i]) * v[i - 1] / n;
    m.largest = std::max(m.largest, std::fabs(double(v[i])));
  }
  m.fourth /= m.deviation * m.deviation;
  m.neighbours /= m.deviation;
  m.deviation = std::sqrt(m.deviation);
  return m;
}

TEST(CudaRows, FillRandomIsNormalAndNamedBySeedAndIndex) {
  constexpr size_t kCount = (1 << 20) + 3;
  const DeviceBytes a((kCount + 5) * 2), b(kCount * 2), c(kCount * 2);
  fill_random(context(), a.data(), kCount, 77, 0.02f);
  fill_random(context(), b.data(), kCount - 9, 77, 0.02f);
  fill_random(context(), c.data(), kCount, 78, 0.02f);
  const auto x = download_bf16(a.data(), kCount);
  const Moments m = moments(x);
  // Standard errors at 2^20 values: mean 0.001, deviation 0.0007, kurtosis 0.005 of their units.
  EXPECT_NEAR(m.mean / 0.02, 0, 0.005);
  EXPECT_NEAR(m.deviation / 0.02, 1, 0.004);
  EXPECT_NEAR(m.fourth, 3, 0.03);
  EXPECT_NEAR(m.neighbours, 0, 0.005);
  EXPECT_GT(m.largest / 0.02, 4);
  EXPECT_LT(m.largest / 0.02, 7);
  const auto y = download_bf16(b.data(), kCount - 9);
  EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin()));
  EXPECT_NE(download_bf16(c.data(), kCount), x);
  const auto behind = download<uint16_t>(a.as<uint16_t>() + kCount, 5);
  EXPECT_EQ(behind, std::vector<uint16_t>(5, 0xffff)) << "nothing is written behind the end";
}

struct RopeCase {
  int heads, kv_heads, head_dim, rotary;
  bool norms;
  std::vector<Part> parts;
  int block_tokens = 16;
};

void check_rope(const RopeCase& c, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " x " << c.head_dim << ", rotary "
                                  << c.rotary << (c.norms ? ", norms" : "") << ", rows from "
                                  << c.parts[0].context);
  const auto judge = make_ref_backend();
  std::vector<Part> parts = c.parts;
  for (Part& p : parts) p.first_block = p.context / c.block_tokens;
  const PagedBatch batch(parts, c.block_tokens, 3, seed);
  PagedCache cache({c.block_tokens, 3, c.kv_heads, c.head_dim, DType::bf16}, batch.blocks(), 1);
  const int width = (c.heads + 2 * c.kv_heads) * c.head_dim, q_width = c.heads * c.head_dim;
  std::vector<float> qkv = random_bf16(size_t(batch.rows()) * size_t(width), seed + 1);
  std::vector<float> inv_freq(size_t(c.rotary / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i)
    inv_freq[i] = std::pow(500000.0f, -float(2 * i) / float(c.rotary));
  const std::vector<float> q_norm = random_f32(size_t(c.head_dim), seed + 2),
                           k_norm = random_f32(size_t(c.head_dim), seed + 3);
  const float magnitude = c.norms ? 1.1f : 1;
  const DeviceBytes d_qkv = upload_bf16(qkv), d_freq = upload(inv_freq), d_q = upload(q_norm),
                    d_k = upload(k_norm);

  const BatchInput on_card = batch.on_card(), judged = batch.judged();
  rope_store_kv(context(),
                {bf16_tensor(d_qkv.data(), batch.rows(), width), on_card, cache.geometry, cache.card_layer(),
                 c.heads, c.norms ? d_q.as<float>() : nullptr, c.norms ? d_k.as<float>() : nullptr, 1e-6f,
                 c.rotary, d_freq.as<float>(), magnitude});
  judge->rope_store_kv({f32_tensor(qkv, batch.real_rows(), width), judged, cache.judged_geometry,
                        cache.judged_layer(), c.heads, c.norms ? q_norm.data() : nullptr,
                        c.norms ? k_norm.data() : nullptr, 1e-6f, c.rotary, inv_freq.data(), magnitude});

  const auto rows = download_bf16(d_qkv.data(), qkv.size());
  std::vector<float> got, want;
  for (int r = 0; r < batch.real_rows(); ++r) {
    const auto at = [&](const std::vector<float>& v) { return v.begin() + r * width; };
    got.insert(got.end(), at(rows), at(rows) + q_width);
    want.insert(want.end(), at(qkv), at(qkv) + q_width);
  }
  // The judge's angle is a float, as the card's; cosf of glibc and of CUDA differ by 2 units of the last place.
  expect_rounded(got, want, 1e-5f);

  const auto pool = download<uint16_t>(cache.card.data(), cache.judged.size());
  got.clear(), want.clear();
  for (size_t i = 0; i < pool.size(); ++i) {
    if (std::isnan(cache.judged[i])) {
      ASSERT_EQ(pool[i], 0xffff) << "stored where no token belongs, at " << i;
    } else {
      got.push_back(bf16_to_f32(pool[i])), want.push_back(cache.judged[i]);
    }
  }
  expect_rounded(got, want, 1e-5f);
}

TEST(CudaRows, RopeStore) {
  uint32_t seed = 500;
  const std::vector<Part> ragged = {{0, 33}, {5, 1}, {99990, 23}, {131040, 16}, {4090, 7}};
  for (int head_dim : {8, 16, 32, 64, 80, 96, 128, 256}) {
    for (auto [heads, kv_heads] : {std::pair{9, 3}, {32, 8}, {4, 1}}) {
      for (bool norms : {false, true}) {
        check_rope({heads, kv_heads, head_dim, head_dim, norms, {{17, 1}}}, seed += 10);
        check_rope({heads, kv_heads, head_dim, head_dim, norms, ragged}, seed += 10);
      }
    }
  }
}

TEST(CudaRows, RopeStorePartialRotaryAndOddBlocks) {
  uint32_t seed = 900;
  for (bool norms : {false, true}) {
    check_rope({8, 2, 128, 64, norms, {{0, 40}, {9, 1}}}, seed += 10);
    check_rope({8, 2, 80, 32, norms, {{0, 40}, {9, 1}}}, seed += 10);
    check_rope({8, 2, 80, 20, norms, {{0, 40}, {9, 1}}}, seed += 10);
    check_rope({8, 2, 96, 24, norms, {{0, 40}, {9, 1}}, 8}, seed += 10);
    check_rope({8, 2, 256, 128, norms, {{0, 40}, {9, 1}}, 64}, seed += 10);
    check_rope({8, 2, 64, 0, norms, {{0, 40}, {9, 1}}, 24}, seed += 10);
    check_rope({64, 8, 128, 128, norms, {{0, 300}}, 32}, seed += 10);
  }
}

}  // namespace
}  // namespace sluice::cuda::test
