// Products of eight-bit factors, kernel by kernel: what is quantized on the card equals the same arithmetic
// here, byte for byte; products equal sums in float64 of the very numbers that the bytes say. linear_test.cc
// checks all together by the judge.
#include <fmt/format.h>

#include <cmath>

#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/linear/stream_gemm.h"
#include "tensor/cuda/linear/stream_gemm_8bit.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"
#include "tensor/fp8.h"

namespace sluice::cuda::test {
namespace {

constexpr int64_t kBlock = 128;
int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

float value_of(Factors factors, uint8_t byte) {
  return factors == Factors::int8 ? float(int8_t(byte)) : e4m3_to_f32(byte);
}
uint8_t byte_of(Factors factors, float value) {
  return factors == Factors::int8 ? uint8_t(int8_t(std::nearbyint(value))) : f32_to_e4m3(value);
}

// What quantize_rows documents, here.
struct HostRows {
  std::vector<uint8_t> bytes;  // [rows, cols]
  std::vector<float> scales;   // [rows], or [blocks, rows]
};
HostRows quantized(const std::vector<float>& x, int64_t rows, int64_t cols, Factors factors) {
  const bool blocks = factors == Factors::fp8_blocks;
  const float most = factors == Factors::int8 ? 127 : 448;
  const int64_t group = blocks ? kBlock : cols;
  HostRows out{std::vector<uint8_t>(x.size()),
               std::vector<float>(size_t(rows * (blocks ? blocks_of(cols) : 1)))};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t begin = 0; begin < cols; begin += group) {
      float largest = 0;
      for (int64_t c = begin; c < std::min(cols, begin + group); ++c)
        largest = std::max(largest, std::fabs(x[size_t(r * cols + c)]));
      largest = std::max(largest, 1e-30f);
      out.scales[size_t(begin / group * rows + r)] = largest / most;
      for (int64_t c = begin; c < std::min(cols, begin + group); ++c)
        out.bytes[size_t(r * cols + c)] = byte_of(factors, x[size_t(r * cols + c)] * (most / largest));
    }
  return out;
}

struct CardRows {
  DeviceBytes bytes, scales;
  QuantizedRows view;
  CardRows(int64_t rows, int64_t cols, Factors factors)
      : bytes(size_t(rows * cols)),
        scales(size_t(rows * blocks_of(cols)) * sizeof(float)),
        view{bytes.data(), scales.as<float>(), factors, rows, cols, rows} {}
};

constexpr Factors kEight[] = {Factors::fp8, Factors::fp8_blocks, Factors::int8};

TEST(QuantizedRows, EqualTheDefinition) {
  for (const Factors factors : kEight)
    for (const int64_t cols : {16, 48, 128, 272, 576, 4096, 14336, 28672}) {
      SCOPED_TRACE(testing::Message() << int(factors) << ", " << cols << " columns");
      constexpr int64_t kRows = 7;
      auto x = random_bf16(size_t(kRows * cols), uint32_t(cols), 3);
      const auto fill = [&](int64_t row, float v) { std::fill_n(x.begin() + row * cols, cols, v); };
      fill(1, 0);                                       // zeros stay zeros
      fill(2, -1.5f), x[size_t(2 * cols + 3)] = 1e30f;  // one that drowns the others
      fill(3, 1e-36f);                                  // too small for an inverse
      x[size_t(4 * cols + cols - 1)] = -2048;           // the largest is the last, and negative
      const DeviceBytes card_x = upload_bf16(x);
      for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
      CardRows card(kRows, cols, factors);
      quantize_rows(context(), bf16_tensor(card_x.data(), kRows, cols), card.view);
      const HostRows want = quantized(x, kRows, cols, factors);
      EXPECT_EQ(download<uint8_t>(card.bytes.data(), want.bytes.size()), want.bytes);
      EXPECT_EQ(download<float>(card.scales.data(), want.scales.size()), want.scales);
    }
}

TEST(QuantizedRows, WhatIsNoNumberIsNotHidden) {
  constexpr int64_t kCols = 512;
  for (const float bad : {INFINITY, NAN}) {
    std::vector<float> x(3 * kCols, 1.f);
    x[kCols + 100] = bad;
    const DeviceBytes card_x = upload_bf16(x);
    CardRows card(3, kCols, Factors::fp8);
    quantize_rows(context(), bf16_tensor(card_x.data(), 3, kCols), card.view);
    const auto bytes = download<uint8_t>(card.bytes.data(), 3 * kCols);
    const auto scales = download<float>(card.scales.data(), 3);
    EXPECT_TRUE(std::isnan(scales[1] * e4m3_to_f32(bytes[kCols + 100])));
    EXPECT_TRUE(std::isnan(scales[1] * e4m3_to_f32(bytes[kCols])));
    for (const int64_t row : {0, 2})
      EXPECT_EQ(scales[size_t(row)] * e4m3_to_f32(bytes[size_t(row * kCols)]), 1.f);
  }
}

// A product's factors on both sides, of one kind.
class Case {
 public:
  Case(Factors factors, int64_t m, int64_t n, int64_t k, bool bias = false, bool f32 = false)
      : factors_(factors), m_(m), n_(n), k_(k), f32_(f32), bias_given_(bias), card_x_(m, k, factors) {
    const auto x = random_bf16(size_t(m * k), uint32_t(m + k));
    x_ = quantized(x, m, k, factors);
    quantize_rows(context(), bf16_tensor(upload_bf16(x).data(), m, k), card_x_.view);
    wait();
    std::mt19937 rng{uint32_t(n)};
    w_.bytes.resize(size_t(n * k));
    for (uint8_t& b : w_.bytes) {
      b = uint8_t(rng());
      if (factors != Factors::int8 && e4m3_is_nan(b)) b = 0;
    }
    w_stride_ = (blocks_of(k) + 3) / 4 * 4;
    w_.scales.resize(size_t(factors == Factors::fp8_blocks ? blocks_of(n) * w_stride_ : n));
    std::uniform_real_distribution<float> scales(0.001f, 0.01f);
    for (float& s : w_.scales) s = scales(rng);
    bias_ = random_bf16(size_t(n), 9, 5);
    card_w_.push_back(upload(w_.bytes));
    card_w_.push_back(upload(w_.scales));
    card_w_.push_back(upload(bias_));
  }

  QuantizedProduct product(const DeviceBytes& out) const {
    return {card_x_.view,
            {card_w_[0].data(), card_w_[1].as<float>(), w_stride_, n_, k_},
            bias_given_ ? card_w_[2].as<float>() : nullptr,
            Tensor{out.data(), f32_ ? DType::f32 : DType::bf16, m_, n_, n_}};
  }
  std::vector<float> stream(const StreamConfig& config) const {
    const DeviceBytes out(size_t(m_ * n_) * (f32_ ? 4 : 2));
    stream_gemm_8bit(context(), product(out), config, workspace());
    return f32_ ? download<float>(out.data(), size_t(m_ * n_)) : download_bf16(out.data(), size_t(m_ * n_));
  }
  std::vector<float> cublas(CublasLt& lt) const {
    const DType dtype = factors_ == Factors::int8 ? DType::i32 : DType::bf16;
    const DeviceBytes out(size_t(m_ * n_) * dtype_size(dtype));
    lt.run({Tensor{card_x_.bytes.data(), DType::i8, m_, k_, k_}, card_w_[0].data(), nullptr,
            Tensor{out.data(), dtype, m_, n_, n_}, factors_, card_w_[1].as<float>(),
            card_x_.scales.as<float>()});
    if (dtype == DType::bf16) return download_bf16(out.data(), size_t(m_ * n_));
    const auto sums = download<int32_t>(out.data(), size_t(m_ * n_));
    std::vector<float> values(sums.begin(), sums.end());
    for (int64_t r = 0; r < m_; ++r)
      for (int64_t c = 0; c < n_; ++c)
        values[size_t(r * n_ + c)] *= x_.scales[size_t(r)] * w_.scales[size_t(c)];
    return values;
  }

  // Some columns: those of the first and last tile, and some between.
  void expect_right(const std::vector<float>& got, double tolerance) const {
    double difference = 0, size = 0;
    std::vector<float> row(static_cast<size_t>(k_));
    for (int64_t c = 0; c < n_; ++c) {
      if (c >= 130 && c < n_ - 130 && c % 613) continue;
      for (int64_t i = 0; i < k_; ++i)
        row[size_t(i)] = value_of(factors_, w_.bytes[size_t(c * k_ + i)]) * w_scale(c, i);
      for (int64_t r = 0; r < m_; ++r) {
        double want = bias_given_ ? bias_[size_t(c)] : 0;
        for (int64_t i = 0; i < k_; ++i) want += double(row[size_t(i)]) * double(x_value(r, i));
        const double off = got[size_t(r * n_ + c)] - want;
        difference += off * off, size += want * want;
      }
    }
    EXPECT_LT(std::sqrt(difference / size), tolerance);
  }

  static void* workspace() {
    static const DeviceBytes bytes = [] {
      stream_gemm_8bit_prepare();
      DeviceBytes made(stream_gemm_workspace_bytes(context().multiprocessors));
      CUDA_CHECK(cudaMemset(made.data(), 0, made.bytes()));
      return made;
    }();
    return bytes.data();
  }

 private:
  bool blocks() const { return factors_ == Factors::fp8_blocks; }
  float w_scale(int64_t row, int64_t col) const {
    return w_.scales[size_t(blocks() ? row / kBlock * w_stride_ + col / kBlock : row)];
  }
  float x_value(int64_t row, int64_t col) const {
    return value_of(factors_, x_.bytes[size_t(row * k_ + col)]) *
           x_.scales[size_t(blocks() ? col / kBlock * m_ + row : row)];
  }

  const Factors factors_;
  const int64_t m_, n_, k_;
  const bool f32_, bias_given_;
  CardRows card_x_;
  HostRows x_, w_;
  int64_t w_stride_ = 0;
  std::vector<float> bias_;
  std::vector<DeviceBytes> card_w_;
};

// Sums of fp8 products keep 14 bits in the tensor cores; of int8 they are exact.
double tolerance_of(Factors factors, bool f32) {
  if (!f32) return 3e-3;
  return factors == Factors::int8 ? 1e-6 : 1e-3;
}

// Every kernel that was compiled, with tiles that are shared and not, full and not.
TEST(StreamGemm8Bit, EveryKernel) {
  int kernels = 0;
  for (const Factors factors : kEight)
    for (const int rows : {8, 16, 32, 64, 128})
      for (const int depth : {128, 256, 512})
        for (const int tile : {stream_tile(rows), 40})
          for (const bool whole : {false, true}) {
            StreamConfig config;
            config.factors = factors, config.rows = rows, config.tile = tile, config.depth = depth;
            config.whole_tiles = whole, config.stages = 4;
            if (!stream_gemm_8bit_supports(config)) continue;
            const LinearChoice choice{LinearChoice::Way::stream, config};
            SCOPED_TRACE(fmt::format("factors {} {}", int(factors), choice.text()));
            const Case product(factors, rows - 1, 1160, 1408, whole, true);
            const auto first = product.stream(config), second = product.stream(config);
            product.expect_right(first, tolerance_of(factors, true));
            EXPECT_EQ(first, second) << "not the same twice";
            ++kernels;
          }
  EXPECT_GE(kernels, 9 * 3 * 4);
}

TEST(StreamGemm8Bit, ChosenForShapes) {
  for (const Factors factors : kEight)
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{6144, 4096}, {4096, 14336}, {960, 576}, {272, 528}, {16, 16}})
      for (const int64_t m : {1, 7, 16, 25, 32}) {
        SCOPED_TRACE(fmt::format("factors {} m {} n {} k {}", int(factors), m, n, k));
        const LinearChoice choice = choose_linear({m, n, k, DType::bf16, factors}, context().multiprocessors);
        ASSERT_EQ(choice.way, LinearChoice::Way::stream);
        ASSERT_TRUE(stream_gemm_8bit_supports(choice.stream)) << choice.text();
        const Case product(factors, m, n, k, m == 7);
        product.expect_right(product.stream(choice.stream), tolerance_of(factors, false));
      }
}

TEST(CublasLt8Bit, ScalesOfEachKind) {
  static MemoryBackend memory;
  auto lt = CublasLt::make(context(), memory);
  ASSERT_TRUE(lt.ok()) << lt.error().message;
  for (const Factors factors : kEight)
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {1024, 1536}, {272, 528}})
      for (const int64_t m : {33, 64, 101, 128, 257, 640}) {
        if (factors == Factors::fp8_blocks && (m % 4 || n % 128 || k % 128)) continue;
        SCOPED_TRACE(fmt::format("factors {} m {} n {} k {}", int(factors), m, n, k));
        const Case product(factors, m, n, k);
        product.expect_right(product.cublas(**lt), 3e-3);
      }
}

}  // namespace
}  // namespace sluice::cuda::test
