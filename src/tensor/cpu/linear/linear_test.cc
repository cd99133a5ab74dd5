#include "tensor/cpu/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tensor/cpu/linear/kernels.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {

// Memory from the heap; no op is ever called.
class HostMemory : public Backend {
 public:
  DeviceInfo info() const override { return {}; }
  Buffer alloc(size_t bytes) override {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(p, 0, bytes);
    return {this, p, bytes};
  }
  void free(void* data, size_t) override { std::free(data); }
  void copy_in(void*, const void*, size_t) override { std::abort(); }
  void copy_out(void*, const void*, size_t) override { std::abort(); }
  Status reserve(const WorkspaceShape&) override { std::abort(); }
  DType activation_dtype() const override { return DType::f32; }
  DType kv_dtype() const override { return DType::f16; }
  size_t kv_block_bytes(const KvGeometry&) const override { return 0; }
  Result<Weight> pack(std::span<const PackSource>) override { std::abort(); }
  void begin_step(const BatchInput&, const KvGeometry&, int) override { std::abort(); }
  void embed(const EmbedArgs&) override { std::abort(); }
  void rms_norm(const RmsNormArgs&) override { std::abort(); }
  void add_rms_norm(const AddRmsNormArgs&) override { std::abort(); }
  void linear(const LinearArgs&) override { std::abort(); }
  void rope_store_kv(const RopeStoreArgs&) override { std::abort(); }
  void attention(const AttentionArgs&) override { std::abort(); }
  void act_mul(const ActMulArgs&) override { std::abort(); }
  void gather_rows(const Tensor&, const int32_t*, const Tensor&) override { std::abort(); }
  void sample(const SampleArgs&) override { std::abort(); }
  void copy_blocks(std::byte*, size_t, std::span<const std::pair<int32_t, int32_t>>) override { std::abort(); }
  void finish_step() override { std::abort(); }
};

// What random integers look like: the range decides which kernel packs choose.
struct Case {
  const char* name;
  WeightFormat format;
  int low, high;     // of q
  bool wide_scales;  // scales that f16 can't hold exactly
  bool tiny_scales;  // scales below f16's normal range
};

constexpr Case kCases[] = {
    {"int4_g32_min", {WeightElement::int4, 32, true}, 0, 15, false, false},
    {"int4_g32", {WeightElement::int4, 32, false}, 0, 15, false, false},
    {"int4_g16_min", {WeightElement::int4, 16, true}, 0, 15, false, false},
    {"int4_g32_min_wide", {WeightElement::int4, 32, true}, 0, 15, true, false},
    {"int4_g128_min", {WeightElement::int4, 128, true}, 0, 15, false, false},
    {"int8_g32", {WeightElement::int8, 32, false}, -128, 127, false, false},
    {"int8_g32_min", {WeightElement::int8, 32, true}, -128, 127, false, false},
    {"int8_g32_tiny", {WeightElement::int8, 32, false}, -128, 127, false, true},
    {"int8_g16", {WeightElement::int8, 16, false}, -128, 127, false, false},
    {"int5_g32", {WeightElement::int8, 32, false}, -16, 15, false, false},
    {"int5_g32_min", {WeightElement::int8, 32, true}, 0, 31, false, false},
    {"int6_g16", {WeightElement::int8, 16, false}, -32, 31, true, false},
    {"int5_g16_min", {WeightElement::int8, 16, true}, -16, 15, true, false},
    {"int6_g32", {WeightElement::int8, 32, false}, -32, 31, false, false},
    {"f32", {WeightElement::f32, 0, false}, 0, 0, false, false},
    {"f16", {WeightElement::f16, 0, false}, 0, 0, false, false},
    {"bf16", {WeightElement::bf16, 0, false}, 0, 0, false, false},
};

class RandomRows : public RowSource {
 public:
  RandomRows(const Case& c, int64_t rows, int64_t cols, uint32_t seed)
      : format_(c.format), rows_(rows), cols_(cols) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> q(c.low, c.high);
    std::normal_distribution<float> normal;
    const int64_t groups = format_.is_float() ? 0 : (cols + format_.group - 1) / format_.group;
    for (int64_t r = 0; r < rows; ++r) {
      DecodedRow row;
      if (format_.is_float()) {
        for (int64_t k = 0; k < cols; ++k) append_element(normal(random), row.raw);
      } else {
        for (int64_t k = 0; k < cols; ++k) row.q.push_back(int8_t(q(random)));
        for (int64_t g = 0; g < groups; ++g) {
          row.scale.push_back(scale(c, normal(random)));
          row.min.push_back(format_.has_min ? scale(c, normal(random) * 4) : 0.f);
        }
        // Extremes meet extremes somewhere: that is where 16-bit sums would overflow.
        if (r % 3 == 0) std::fill(row.q.begin(), row.q.end(), int8_t(r % 2 ? c.low : c.high));
      }
      data_.push_back(std::move(row));
    }
  }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  void decode(int64_t row, DecodedRow& out) const override { out = data_[size_t(row)]; }

  double at(int64_t r, int64_t k) const {
    const DecodedRow& row = data_[size_t(r)];
    const auto i = size_t(k);
    if (format_.element == WeightElement::f32) {
      float f;
      std::memcpy(&f, row.raw.data() + i * 4, 4);
      return f;
    }
    if (format_.is_float()) {
      uint16_t bits;
      std::memcpy(&bits, row.raw.data() + i * 2, 2);
      return format_.element == WeightElement::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    const auto g = size_t(k / format_.group);
    return double(row.scale[g]) * row.q[i] + row.min[g];
  }

 private:
  static float scale(const Case& c, float v) {
    if (c.tiny_scales) return v * 1e-7f;
    return c.wide_scales ? v * 0.01f : f16_to_f32(f32_to_f16(v * 0.01f));
  }
  void append_element(float v, std::vector<std::byte>& raw) const {
    std::byte bytes[4];
    const uint16_t half = format_.element == WeightElement::f16 ? f32_to_f16(v) : f32_to_bf16(v);
    const size_t size = format_.element == WeightElement::f32 ? 4 : 2;
    std::memcpy(bytes, size == 4 ? static_cast<const void*>(&v) : &half, size);
    raw.insert(raw.end(), bytes, bytes + size);
  }

  WeightFormat format_;
  int64_t rows_, cols_;
  std::vector<DecodedRow> data_;
};

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512_vnni, Isa::amx}) {
    if (choose_isa(isa_name(isa)).ok()) isas.push_back(isa);
  }
  return isas;
}

std::vector<float> random_x(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(rows * cols));
  for (float& v : x) v = normal(random);
  // Rows whose quantized values are all +-127, one with outliers, one of zeros.
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t k = 0; k < cols; ++k) {
      float& v = x[size_t(m * cols + k)];
      if (m % 5 == 1) v = 3.f;
      if (m % 5 == 2) v = -3.f;
      if (m % 5 == 3 && k % 37 == 0) v *= 300;
      if (m % 11 == 10) v = 0;
    }
  }
  return x;
}

std::vector<float> run(Team& team, Isa isa, const Weight& w, const float* x, int64_t m,
                       const float* bias = nullptr) {
  std::vector<std::byte> scratch(linear_scratch_bytes(isa, m, w.cols));
  // Wider rows than needed: strides count, and nothing outside may be written.
  const int64_t stride = w.rows + 3;
  std::vector<float> out(size_t(m * stride), -77.f);
  const LinearArgs args{{const_cast<float*>(x), DType::f32, m, w.cols, w.cols},
                        w,
                        bias,
                        {out.data(), DType::f32, m, w.rows, stride}};
  linear(team, isa, args, scratch.data());
  std::vector<float> dense;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t n = 0; n < 3; ++n) EXPECT_EQ(out[size_t(r * stride + w.rows + n)], -77.f);
    dense.insert(dense.end(), out.begin() + r * stride, out.begin() + r * stride + w.rows);
  }
  return dense;
}

Weight pack_one(HostMemory& memory, Team& team, Isa isa, const RowSource& rows) {
  const Backend::PackSource source{&rows, {}};
  Result<Weight> w = pack_weight(memory, team, isa, {&source, 1});
  CHECK(w.ok());
  return std::move(*w);
}

// x after quantization, as the values it stands for.
std::vector<double> quantized(const float* x, int64_t m, int64_t cols) {
  std::vector<std::byte> bytes(linear_scratch_bytes(Isa::scalar, m, cols));
  const auto aligned = (reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64;
  const QuantRows rows{reinterpret_cast<std::byte*>(aligned), x_groups(cols), kPanelRows};
  quantize_scalar(x, cols, cols, rows, 0, m);
  std::vector<double> values;
  for (int64_t i = 0; i < m; ++i) {
    const QuantRow high = quant_row(rows, i * kPlanes), low = quant_row(rows, i * kPlanes + 1);
    for (int64_t k = 0; k < cols; ++k) {
      values.push_back(double((high.q[k] << kPlaneShift) + low.q[k]) * high.scale[k / 32 * high.step]);
    }
  }
  return values;
}

struct Shape {
  int64_t n, k, m;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {16, 32, 1},  {17, 48, 3},   {5, 100, 2}, {40, 192, 7},
                             {33, 576, 4}, {96, 160, 5}, {48, 256, 33}, {7, 33, 64}, {100, 416, 18}};

class LinearTest : public testing::TestWithParam<Case> {
 protected:
  HostMemory memory_;
  Team team_{2};
};

INSTANTIATE_TEST_SUITE_P(Formats, LinearTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LinearTest, EqualsIntegerEmulation) {
  // Same quantized x, exact arithmetic: what is left is float rounding of the sums, and of scales to f16 (2^-12
  // relative, K-quants only).
  for (const Shape& s : kShapes) {
    const RandomRows rows(GetParam(), s.n, s.k, 7);
    const std::vector<float> x = random_x(s.m, s.k, 8), bias = random_x(1, s.n, 9);
    const bool floats = GetParam().format.is_float();
    const std::vector<double> xq =
        floats ? std::vector<double>(x.begin(), x.end()) : quantized(x.data(), s.m, s.k);
    for (Isa isa : available_isas()) {
      const Weight w = pack_one(memory_, team_, isa, rows);
      const std::vector<float> out = run(team_, isa, w, x.data(), s.m, bias.data());
      for (int64_t m = 0; m < s.m; ++m) {
        for (int64_t n = 0; n < s.n; ++n) {
          double sum = bias[size_t(n)], terms = std::fabs(sum);
          for (int64_t k = 0; k < s.k; ++k) {
            const double term = rows.at(n, k) * xq[size_t(m * s.k + k)];
            sum += term;
            // q·scale and min are rounded apart from each other, so their own sizes count.
            terms +=
                std::fabs(term) + (GetParam().format.has_min ? 0.5 * std::fabs(xq[size_t(m * s.k + k)]) : 0);
          }
          const double tolerance = (GetParam().wide_scales ? 3e-4 : 1e-5) * terms + 1e-30;
          ASSERT_NEAR(out[size_t(m * s.n + n)], sum, tolerance)
              << isa_name(isa) << " n " << s.n << " k " << s.k << " at " << m << "," << n;
        }
      }
    }
  }
}

TEST_P(LinearTest, NearFloat64Reference) {
  // Quantizing x to two planes moves each element by at most amax / 254² of its 32 columns: that times |w|
  // bounds the error, besides the rounding of scales to f16 and of the float sums.
  for (const Shape& s : kShapes) {
    const RandomRows rows(GetParam(), s.n, s.k, 17);
    const std::vector<float> x = random_x(s.m, s.k, 18);
    for (Isa isa : available_isas()) {
      const Weight w = pack_one(memory_, team_, isa, rows);
      const std::vector<float> out = run(team_, isa, w, x.data(), s.m);
      for (int64_t m = 0; m < s.m; ++m) {
        for (int64_t n = 0; n < s.n; ++n) {
          double sum = 0, bound = 0;
          for (int64_t k = 0; k < s.k; ++k) {
            double amax = 0;
            for (int64_t j = k / 32 * 32; j < std::min(k / 32 * 32 + 32, s.k); ++j) {
              amax = std::max(amax, std::fabs(double(x[size_t(m * s.k + j)])));
            }
            sum += rows.at(n, k) * x[size_t(m * s.k + k)];
            bound += std::fabs(rows.at(n, k)) * amax;
          }
          ASSERT_NEAR(out[size_t(m * s.n + n)], sum,
                      bound * (1 / (254. * 254.) + (GetParam().wide_scales ? 2e-3 : 0) + 1e-5) + 1e-30)
              << isa_name(isa) << " n " << s.n << " k " << s.k << " at " << m << "," << n;
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowIsBitIdenticalWhateverTheBatch) {
  constexpr int64_t kN = 51, kK = 224, kM = 70;
  const RandomRows rows(GetParam(), kN, kK, 27);
  const std::vector<float> x = random_x(kM, kK, 28);
  for (Isa isa : available_isas()) {
    const Weight w = pack_one(memory_, team_, isa, rows);
    Team one(1);
    std::vector<float> alone;
    for (int64_t m = 0; m < kM; ++m) {
      const std::vector<float> row = run(one, isa, w, x.data() + m * kK, 1);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int threads : {1, 2, 3}) {
      Team team(threads);
      for (int64_t count : {1, 2, 3, 5, 6, 7, 8, 12, 15, 16, 17, 28, 33, 69}) {
        if (threads != 2 && count % 2 == 0) continue;
        const int64_t first = count * 5 % (kM - count + 1);
        const std::vector<float> out = run(team, isa, w, x.data() + first * kK, count);
        ASSERT_EQ(0, std::memcmp(out.data(), alone.data() + first * kN, out.size() * sizeof(float)))
            << isa_name(isa) << " threads " << threads << " rows " << count << " from " << first;
      }
    }
  }
}

TEST(Linear, ARowIsBitIdenticalWhateverTheNumberOfTiles) {
  // So many tiles that one member's piece is taken in stretches, and more rows than pass at once.
  constexpr int64_t kN = 4800, kK = 256, kM = 41;
  HostMemory memory;
  Team one(1);
  const std::vector<float> x = random_x(kM, kK, 58);
  for (size_t i : {size_t(0), size_t(5), size_t(9)}) {
    const RandomRows rows(kCases[i], kN, kK, 57);
    for (Isa isa : available_isas()) {
      if (isa == Isa::scalar) continue;
      const Weight w = pack_one(memory, one, isa, rows);
      const std::vector<float> all = run(one, isa, w, x.data(), kM);
      for (int64_t m = 0; m < kM; ++m) {
        const std::vector<float> row = run(one, isa, w, x.data() + m * kK, 1);
        ASSERT_EQ(0, std::memcmp(row.data(), all.data() + m * kN, row.size() * sizeof(float)))
            << kCases[i].name << " " << isa_name(isa) << " row " << m;
      }
    }
  }
}

TEST_P(LinearTest, UnpacksWhatWasPacked) {
  const RandomRows rows(GetParam(), 37, 208, 37);
  for (Isa isa : available_isas()) {
    const Weight w = pack_one(memory_, team_, isa, rows);
    std::vector<float> out(208);
    for (int64_t r = 0; r < 37; ++r) {
      unpack_row(isa, w, r, out.data());
      for (int64_t k = 0; k < 208; ++k) {
        const double expected = rows.at(r, k);
        const double tolerance = GetParam().wide_scales ? 5e-4 : 1e-6;
        ASSERT_NEAR(out[size_t(k)], expected,
                    tolerance * (std::fabs(expected) + (GetParam().format.has_min ? 1 : 0)));
      }
    }
  }
}

TEST_P(LinearTest, BadValuesSpoilOnlyTheirRow) {
  constexpr int64_t kN = 20, kK = 96, kM = 6;
  const RandomRows rows(GetParam(), kN, kK, 47);
  const std::vector<float> good = random_x(kM, kK, 48);
  std::vector<float> bad = good;
  bad[1 * kK + 5] = std::numeric_limits<float>::quiet_NaN();
  bad[3 * kK + 95] = std::numeric_limits<float>::infinity();
  bad[4 * kK + 40] = -std::numeric_limits<float>::infinity();
  for (Isa isa : available_isas()) {
    const Weight w = pack_one(memory_, team_, isa, rows);
    const std::vector<float> a = run(team_, isa, w, good.data(), kM), b = run(team_, isa, w, bad.data(), kM);
    for (int64_t m : {0, 2, 5}) {
      EXPECT_EQ(0, std::memcmp(&a[size_t(m * kN)], &b[size_t(m * kN)], kN * sizeof(float)))
          << isa_name(isa) << m;
    }
    if (GetParam().format.is_float()) continue;
    for (int64_t m : {1, 3, 4}) {
      for (int64_t n = 0; n < kN; ++n) EXPECT_TRUE(std::isnan(b[size_t(m * kN + n)])) << isa_name(isa) << m;
    }
  }
}

TEST(Linear, PartsAndRowOrder) {
  // q, k, v in three formats as one matrix, with the rows of the first permuted. Up to 7 rows AVX2 wants x in
  // two forms for it.
  HostMemory memory;
  Team team(2);
  constexpr int64_t kK = 256, kMaxM = 19;
  const RandomRows q(kCases[0], 48, kK, 1), k(kCases[5], 19, kK, 2), v(kCases[11], 23, kK, 3);
  std::vector<int32_t> order(48);
  for (int i = 0; i < 48; ++i) order[size_t(i)] = (i * 7 + 5) % 48;
  const Backend::PackSource sources[] = {{&q, order}, {&k, {}}, {&v, {}}};
  const std::vector<float> x = random_x(kMaxM, kK, 4);
  for (Isa isa : available_isas()) {
    Result<Weight> w = pack_weight(memory, team, isa, sources);
    ASSERT_TRUE(w.ok());
    ASSERT_EQ(w->rows, 90);
    ASSERT_EQ(w->parts.size(), 3u);
    EXPECT_EQ(w->parts[2].row_begin, 67);
    const Weight wq = pack_one(memory, team, isa, q), wk = pack_one(memory, team, isa, k);
    const Weight wv = pack_one(memory, team, isa, v);
    std::vector<float> row(kK), expected(kK);
    unpack_row(isa, *w, 3, row.data());
    unpack_row(isa, wq, order[3], expected.data());
    EXPECT_EQ(row, expected);
    for (int64_t count : {int64_t(1), int64_t(2), int64_t(7), int64_t(8), kMaxM}) {
      const std::vector<float> all = run(team, isa, *w, x.data(), count);
      const std::vector<float> oq = run(team, isa, wq, x.data(), count),
                               ok = run(team, isa, wk, x.data(), count),
                               ov = run(team, isa, wv, x.data(), count);
      for (int64_t m = 0; m < count; ++m) {
        for (int64_t n = 0; n < 90; ++n) {
          const float want = n < 48   ? oq[size_t(m * 48 + order[size_t(n)])]
                             : n < 67 ? ok[size_t(m * 19 + n - 48)]
                                      : ov[size_t(m * 23 + n - 67)];
          ASSERT_EQ(all[size_t(m * 90 + n)], want) << isa_name(isa) << " " << count << ": " << m << "," << n;
        }
      }
    }
  }
}

TEST(Linear, UnknownGroupIsAnError) {
  HostMemory memory;
  Team team(1);
  const Case odd{"g24", {WeightElement::int8, 24, false}, -5, 5, false, false};
  const RandomRows rows(odd, 4, 48, 1);
  const Backend::PackSource source{&rows, {}};
  Result<Weight> w = pack_weight(memory, team, Isa::scalar, {&source, 1});
  ASSERT_FALSE(w.ok());
  EXPECT_EQ(w.error().code, ErrorCode::kUnsupported);
}

void expect_equal_scales(const QuantRow& a, const QuantRow& b, int64_t groups) {
  for (int64_t i = 0; i < groups * a.step; i += a.step) {
    if (std::isnan(a.scale[i])) {
      EXPECT_TRUE(std::isnan(b.scale[i]));
      continue;
    }
    EXPECT_EQ(a.scale[i], b.scale[i]);
    EXPECT_EQ(a.fsum32[i], b.fsum32[i]);
    EXPECT_EQ(a.fsum16[2 * i], b.fsum16[2 * i]);
    EXPECT_EQ(a.fsum16[2 * i + a.step], b.fsum16[2 * i + a.step]);
  }
}

TEST(Linear, EveryIsaQuantizesAlike) {
  constexpr int64_t kK = 100, kM = 19;
  std::vector<float> x = random_x(kM, kK, 5);
  x[3] = 1e-38f;
  x[kK + 3] = std::numeric_limits<float>::infinity();
  x[4 * kK + 40] = -std::numeric_limits<float>::quiet_NaN();
  for (int64_t k = 0; k < kK; ++k) x[size_t(2 * kK + k)] = float(k % 7) * 1e-37f;
  const int64_t groups = x_groups(kK);
  const auto bytes = size_t(kPlanes * 2 * kPanelRows * quant_row_bytes(groups));
  for (Isa isa : available_isas()) {
    if (isa == Isa::scalar) continue;
    const QuantizeFn quantize = isa == Isa::avx2 ? quantize_avx2 : quantize_avx512;
    for (int64_t panel : {kPlanes, kPanelRows}) {
      std::vector<std::byte> a(bytes), b(bytes);
      const QuantRows qa{a.data(), groups, panel}, qb{b.data(), groups, panel};
      quantize_scalar(x.data(), kK, kK, qa, 0, kM);
      quantize(x.data(), kK, kK, qb, 0, kM);
      for (int64_t m = 0; m < kM * kPlanes; ++m) {
        const QuantRow ra = quant_row(qa, m), rb = quant_row(qb, m);
        for (int64_t k = 0; k < 128; ++k) ASSERT_EQ(ra.q[k], rb.q[k]) << isa_name(isa) << " " << m << "," << k;
        if (m % kPlanes == 0) expect_equal_scales(ra, rb, groups);
      }
    }
  }
}

TEST(Linear, WordsAreThePlanesPutTogether) {
  if (!choose_isa("avx2").ok()) return;  // no other instruction set has them
  constexpr int64_t kK = 100, kM = 19;
  std::vector<float> x = random_x(kM, kK, 6);
  x[kK + 3] = std::numeric_limits<float>::infinity();
  const int64_t groups = x_groups(kK);
  const auto bytes = size_t(kPlanes * 2 * kPanelRows * quant_row_bytes(groups));
  constexpr int kOrder[] = {0, 2, 1, 3};
  for (int64_t panel : {kPlanes, kPanelRows}) {
    std::vector<std::byte> a(bytes), b(bytes);
    const QuantRows planes{a.data(), groups, panel, false}, words{b.data(), groups, panel, true};
    quantize_scalar(x.data(), kK, kK, planes, 0, kM);
    quantize_avx2(x.data(), kK, kK, words, 0, kM);
    for (int64_t m = 0; m < kM; ++m) {
      const QuantRow high = quant_row(planes, m * kPlanes), low = quant_row(planes, m * kPlanes + 1);
      const QuantRow row = quant_row(words, m * kPlanes);
      for (int64_t k = 0; k < groups * kXGroup; ++k) {
        const int64_t from = k / 4 * 4 + kOrder[k % 4];
        const int16_t word = quant_words(words, m)[k / kXGroup * panel / kPlanes * kXGroup + k % kXGroup];
        ASSERT_EQ(word, high.q[from] * (1 << kPlaneShift) + low.q[from]) << m << "," << k;
      }
      expect_equal_scales(high, row, groups);
    }
  }
}

TEST(Isa, ForcedOnesAreNamedOrRefused) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512_vnni, Isa::amx}) {
    Result<Isa> chosen = choose_isa(isa_name(isa));
    if (chosen.ok())
      EXPECT_EQ(*chosen, isa);
    else
      EXPECT_NE(chosen.error().message.find(isa_name(isa)), std::string::npos);
  }
  EXPECT_EQ(*choose_isa("scalar"), Isa::scalar);
  EXPECT_EQ(*choose_isa(""), best_isa());
  EXPECT_FALSE(choose_isa("sse9").ok());
}

}  // namespace
}  // namespace sluice::cpu
