#include "tensor/cuda/linear/linear.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tensor/cuda/linear/bias.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/rows/quantized_weight.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"
#include "tensor/fp8.h"

namespace sluice::cuda::test {
namespace {

MemoryBackend& memory() {
  static MemoryBackend backend;
  return backend;
}
Linear& linear() {
  static const auto made = [] {
    auto l = make_linear(context(), memory());
    if (!l) ADD_FAILURE() << l.error().message;
    return std::move(l).value();
  }();
  return *made;
}

// Rows that the judge takes from a host matrix.
class ListedRows final : public RowSource {
 public:
  ListedRows(const std::vector<float>& values, int64_t cols, const std::vector<int64_t>& rows)
      : values_(values), cols_(cols), rows_(rows) {}
  int64_t rows() const override { return int64_t(rows_.size()); }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return {}; }
  void decode(int64_t row, DecodedRow& out) const override {
    const auto* begin = reinterpret_cast<const std::byte*>(values_.data() + rows_[size_t(row)] * cols_);
    out.raw.assign(begin, begin + cols_ * int64_t(sizeof(float)));
  }

 private:
  const std::vector<float>& values_;
  int64_t cols_;
  const std::vector<int64_t>& rows_;
};

struct Shape {
  int64_t m, n, k;
  bool bias = false;
  DType out = DType::bf16;
  int64_t x_gap = 0, out_gap = 0;  // unused elements behind each row
  bool capture = false;            // the shape's first product is inside a capture
};

// All of them, or the ends and a random choice where the judge would take too long.
std::vector<int64_t> chosen(int64_t of, int64_t most, uint32_t seed) {
  std::vector<int64_t> rows(static_cast<size_t>(of));
  std::iota(rows.begin(), rows.end(), 0);
  if (of <= most) return rows;
  std::mt19937 rng(seed);
  std::shuffle(rows.begin() + 1, rows.end() - 1, rng);
  std::swap(rows[size_t(most - 1)], rows.back());
  rows.resize(size_t(most));
  return rows;
}

void enqueue(Linear& linear, const LinearArgs& a, bool capture) {
  if (!capture) return linear.run(a);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(context().stream, cudaStreamCaptureModeThreadLocal));
  linear.run(a);
  CUDA_CHECK(cudaStreamEndCapture(context().stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(exec, context().stream));
  wait();
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

// Normally distributed; long ones repeat with a period that no row length has.
std::vector<float> values(size_t n, uint32_t seed, float scale = 1) {
  constexpr size_t kPeriod = (1 << 20) - 3;
  std::vector<float> v = random_bf16(std::min(n, kPeriod), seed, scale);
  v.resize(n);
  for (size_t i = kPeriod; i < n; ++i) v[i] = v[i - kPeriod];
  return v;
}

// bf16 results: half a unit of the last place is 2^-9 = 2e-3 relative; float32 ones differ by the order of
// sums.
void expect_product(const Shape& s, Linear& by = linear()) {
  SCOPED_TRACE(testing::Message() << s.m << " rows, " << s.k << " to " << s.n << (s.bias ? ", bias" : "")
                                  << ", out " << dtype_name(s.out) << ", gaps " << s.x_gap << " " << s.out_gap);
  static uint32_t seed = 1;
  const int64_t x_stride = s.k + s.x_gap, out_stride = s.n + s.out_gap;
  const auto x = values(size_t(s.m * x_stride), ++seed);
  const auto w = values(size_t(s.n * s.k), ++seed, 1 / std::sqrt(float(s.k)));
  const auto bias = values(size_t(s.n), ++seed);
  const DeviceBytes x_card = upload_bf16(x), bias_card = upload(bias);
  Weight weight{s.n, s.k, {}};
  weight.parts.push_back({0, s.n, {WeightElement::bf16, 0, false}, memory().alloc(w.size() * 2)});
  {
    const DeviceBytes bits = upload_bf16(w);
    CUDA_CHECK(cudaMemcpy(weight.parts[0].data.data(), bits.data(), w.size() * 2, cudaMemcpyDeviceToDevice));
  }
  by.prepare(weight);
  const size_t out_elements = size_t((s.m + 1) * out_stride);
  const DeviceBytes out(out_elements * dtype_size(s.out));
  enqueue(by,
          {bf16_tensor(x_card.data(), s.m, s.k, x_stride), weight, s.bias ? bias_card.as<float>() : nullptr,
           Tensor{out.data(), s.out, s.m, s.n, out_stride}},
          s.capture);
  const auto all = s.out == DType::bf16 ? download_bf16(out.data(), out_elements)
                                        : download<float>(out.data(), out_elements);

  const auto rows = chosen(s.m, 40, seed), columns = chosen(s.n, 600, seed);
  static const auto judge = make_ref_backend();
  const ListedRows listed(w, s.k, columns);
  const Backend::PackSource source{&listed, {}};
  const auto judged = judge->pack(std::span(&source, 1));
  std::vector<float> x_rows, want(rows.size() * columns.size()), got, bias_columns;
  for (int64_t r : rows) x_rows.insert(x_rows.end(), &x[size_t(r * x_stride)], &x[size_t(r * x_stride)] + s.k);
  for (int64_t c : columns) bias_columns.push_back(bias[size_t(c)]);
  judge->linear({f32_tensor(x_rows, int64_t(rows.size()), s.k), *judged, s.bias ? bias_columns.data() : nullptr,
                 f32_tensor(want, int64_t(rows.size()), int64_t(columns.size()))});
  for (int64_t r : rows)
    for (int64_t c : columns) got.push_back(all[size_t(r * out_stride + c)]);
  EXPECT_LT(relative_error(got, want), s.out == DType::bf16 ? 3e-3 : 1e-5);

  size_t touched = 0, unwritten = 0;
  for (int64_t r = 0; r <= s.m; ++r)
    for (int64_t c = 0; c < out_stride; ++c) {
      const bool nan = std::isnan(all[size_t(r * out_stride + c)]);
      (r < s.m && c < s.n ? unwritten : touched) += r < s.m && c < s.n ? nan : !nan;
    }
  EXPECT_EQ(touched, 0u) << "written beside the result";
  EXPECT_EQ(unwritten, 0u);
}

TEST(Linear, SmallModelsShapes) {
  for (int64_t m : {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 127, 128, 129, 200, 256, 257, 300}) {
    expect_product({m, 72, 72});
    expect_product({m, 960, 576});
    expect_product({m, 640, 2048, true});
    expect_product({m, 1000, 640, false, DType::f32});
  }
}

TEST(Linear, OddWidths) {
  for (int64_t m : {1, 5, 16, 33, 130, 515})
    for (int64_t n : {1, 2, 7, 9, 49, 1001, 4099}) {
      expect_product({m, n, 64});
      expect_product({m, n, 264, true});
      expect_product({m, n, 8, true, DType::f32});
    }
}

TEST(Linear, Views) {
  for (int64_t m : {1, 4, 16, 50, 257}) {
    expect_product({m, 512, 576, false, DType::bf16, 64, 0});
    expect_product({m, 512, 576, true, DType::bf16, 8, 24});
    expect_product({m, 500, 576, false, DType::f32, 0, 12});
  }
}

TEST(Linear, LargeModelsShapes) {
  for (int64_t m : {1, 32, 128, 640, 2176}) expect_product({m, 6144, 4096});
  for (int64_t m : {8, 130}) expect_product({m, 4096, 14336});
  expect_product({130, 28672, 1024, true});
  expect_product({64, 128256, 512, false, DType::f32});
}

// A shape that is met for the first time inside a capture: no algorithm is timed, nothing allocated.
TEST(Linear, FirstMetInACapture) {
  for (int64_t m : {1, 12, 24, 72, 144, 384}) {
    expect_product({m, 1536, 1152, false, DType::bf16, 0, 0, true});
    expect_product({m, 1544, 1152, true, DType::bf16, 0, 0, true});
    expect_product({m, 1552, 1152, false, DType::f32, 0, 0, true});
  }
}

// Kernels that are launched early (device/launch.h) beside cuBLASLt's: each writes the x of the product behind
// it while the one before may still read it. Every result must be what the product gives by itself.
TEST(Linear, OrderAmongOverlappedLaunches) {
  constexpr int64_t kRows = 200, kColumns = 512, kOut = 384;
  constexpr int kProducts = 24;
  const DeviceBytes x(kRows * kColumns * 2), w = upload_bf16(values(kOut * kColumns, 3, 0.05f));
  std::vector<DeviceBytes> inputs, alone, together;
  auto made = CublasLt::make(context(), memory());
  ASSERT_TRUE(made.ok());
  CublasLt& cublas = **made;
  const auto both = [&](int i, const DeviceBytes& out) {
    round_bias(context(), inputs[size_t(i)].as<float>(), x.data(), kRows * kColumns);
    cublas.run(
        {bf16_tensor(x.data(), kRows, kColumns), w.data(), nullptr, bf16_tensor(out.data(), kRows, kOut)});
  };
  for (int i = 0; i < kProducts; ++i) {
    inputs.push_back(upload(values(kRows * kColumns, uint32_t(100 + i))));
    alone.emplace_back(kRows * kOut * 2);
    together.emplace_back(kRows * kOut * 2);
    both(i, alone.back());
    wait();
  }
  graph_ms(kProducts, 5, [&](int i) { both(i, together[size_t(i)]); });
  wait();
  for (int i = 0; i < kProducts; ++i)
    EXPECT_EQ(download<uint16_t>(together[size_t(i)].data(), kRows * kOut),
              download<uint16_t>(alone[size_t(i)].data(), kRows * kOut))
        << i;
}

// Whatever algorithms won, and for rows that were not tried themselves.
TEST(Linear, Tuned) {
  auto own = make_linear(context(), memory());
  ASSERT_TRUE(own.ok());
  constexpr int64_t kHead = 4104;
  std::vector<Weight> weights;
  for (int64_t n : {1152, 1152, 520, int(kHead)}) {
    weights.push_back({n, 640, {}});
    weights.back().parts.push_back(
        {0, n, {WeightElement::bf16, 0, false}, memory().alloc(size_t(n) * 640 * 2)});
    (*own)->prepare(weights.back());
  }
  WorkspaceShape step;
  step.max_tokens = 700, step.max_logit_rows = 200, step.vocab = kHead;
  (*own)->tune(step);
  wait();
  for (int64_t m : {1, 40, 129, 136, 250, 256, 511, 600, 700, 1000}) {
    expect_product({m, 1152, 640}, **own);
    expect_product({m, 520, 640, true}, **own);
    expect_product({m, kHead, 640, false, DType::f32}, **own);
  }
}

// A weight of eight bits as a file has it, random, with the scales of its kind.
class EightBitRows final : public RowSource {
 public:
  EightBitRows(WeightFormat format, int64_t rows, int64_t cols) : format_(format), rows_(rows), cols_(cols) {
    std::mt19937 rng(uint32_t(rows + cols));
    bytes_.resize(size_t(rows * cols));
    // Normally distributed: that uses e4m3's exponents as weights do.
    std::normal_distribution<float> normal(0, format.element == WeightElement::fp8 ? 100.f : 40.f);
    for (int8_t& b : bytes_)
      b = format.element == WeightElement::fp8 ? int8_t(f32_to_e4m3(normal(rng)))
                                               : int8_t(std::clamp(normal(rng), -127.f, 127.f));
    std::uniform_real_distribution<float> scales(0.5f, 2);
    scales_.resize(size_t((rows / format.group_rows + 1) * groups()));
    for (float& s : scales_) s = scales(rng) / (100 * std::sqrt(float(cols)));
  }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  void decode(int64_t row, DecodedRow& out) const override {
    out.q.assign(bytes_.begin() + row * cols_, bytes_.begin() + (row + 1) * cols_);
    const auto scales = scales_.begin() + row / format_.group_rows * groups();
    out.scale.assign(scales, scales + groups());
    out.min.assign(size_t(groups()), 0.f);
  }
  // As load/ leaves it on the card.
  Weight on_card() const {
    const Factors factors = format_.element == WeightElement::int8 ? Factors::int8
                            : format_.group < cols_                ? Factors::fp8_blocks
                                                                   : Factors::fp8;
    const QuantizedLayout layout(factors, rows_, cols_);
    std::vector<float> scales(static_cast<size_t>(layout.scale_count));
    DecodedRow row;
    for (int64_t r = 0; r < rows_; ++r) {
      decode(r, row);
      if (factors != Factors::fp8_blocks)
        scales[size_t(r)] = row.scale[0];
      else
        std::copy(row.scale.begin(), row.scale.end(), scales.begin() + r / kScaleBlock * layout.scale_stride);
    }
    Weight w{rows_, cols_, {}};
    const bool blocks = factors == Factors::fp8_blocks;
    w.parts.push_back({0,
                       rows_,
                       {format_.element, blocks ? 128 : int(cols_), false, blocks ? 128 : 1},
                       memory().alloc(layout.bytes)});
    auto* to = w.parts[0].data.as<std::byte>();
    CUDA_CHECK(cudaMemcpy(to, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(to + layout.scales_at, scales.data(), scales.size() * 4, cudaMemcpyHostToDevice));
    return w;
  }

 private:
  int64_t groups() const { return (cols_ + format_.group - 1) / format_.group; }
  WeightFormat format_;
  int64_t rows_, cols_;
  std::vector<int8_t> bytes_;
  std::vector<float> scales_;
};

// Against the judge, whose x is not rounded to eight bits: a value of e4m3 is off by 2.6 % (root mean square),
// of int8 by 1/127 of the row's largest over the square root of 12.
TEST(Linear, EightBitWeightsOfEveryKind) {
  const auto judge = make_ref_backend();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1536, 1024}, {256, 4096}, {384, 128}, {272, 592}})
    for (const WeightFormat format :
         {WeightFormat{WeightElement::fp8, int(k), false, int(n)},
          WeightFormat{WeightElement::fp8, int(k), false, 1}, WeightFormat{WeightElement::fp8, 128, false, 128},
          WeightFormat{WeightElement::int8, int(k), false, 1}}) {
      if (format.group == 128 && (n % 128 || k % 128)) continue;
      const EightBitRows rows(format, n, k);
      const Backend::PackSource source{&rows, {}};
      const auto judged = judge->pack(std::span(&source, 1));
      const Weight weight = rows.on_card();
      auto own = make_linear(context(), memory());
      ASSERT_TRUE(own.ok());
      (*own)->prepare(weight);
      WorkspaceShape step;
      step.max_tokens = 1100;
      (*own)->tune(step);
      ASSERT_TRUE((*own)->reserve(step));
      for (const int64_t m : {1, 8, 13, 32, 33, 64, 100, 128, 129, 250, 1100}) {
        SCOPED_TRACE(testing::Message() << weight_element_name(format.element) << " groups of " << format.group
                                        << ", " << m << " rows, " << k << " to " << n);
        auto x = values(size_t(m * k), uint32_t(m));
        if (m > 8) std::fill_n(x.begin() + 3 * k, k, 0.f);  // a row of zeros
        if (m > 8) x[size_t(5 * k)] = 1e4f;                 // one value that takes all the range
        auto bias = values(size_t(n), 3);
        const DeviceBytes x_card = upload_bf16(x), bias_card = upload(bias);
        for (const DType out : {DType::bf16, DType::f32}) {
          const DeviceBytes got(size_t((m + kRowsLeftToBackend) * n) * dtype_size(out));
          (*own)->written(bf16_tensor(x_card.data(), m, k));
          (*own)->run({bf16_tensor(x_card.data(), m, k), weight, m % 2 ? bias_card.as<float>() : nullptr,
                       Tensor{got.data(), out, m, n, n}});
          std::vector<float> want(size_t(m * n));
          judge->linear({f32_tensor(x, m, k), *judged, m % 2 ? bias.data() : nullptr, f32_tensor(want, m, n)});
          const auto all = out == DType::bf16 ? download_bf16(got.data(), size_t(m * n))
                                              : download<float>(got.data(), size_t(m * n));
          // The row with the large value tells nothing of the others.
          std::vector<float> rows_got, rows_want;
          for (int64_t r = 0; r < m; ++r) {
            if (m > 8 && r == 5) continue;
            rows_got.insert(rows_got.end(), all.begin() + r * n, all.begin() + (r + 1) * n);
            rows_want.insert(rows_want.end(), want.begin() + r * n, want.begin() + (r + 1) * n);
          }
          EXPECT_LT(relative_error(rows_got, rows_want), format.element == WeightElement::int8 ? 0.015 : 0.035);
          for (int64_t c = 0; m > 8 && c < n; ++c)
            ASSERT_NEAR(all[size_t(3 * n + c)], m % 2 ? bias[size_t(c)] : 0.f, 0.02);
        }
      }
    }
}

TEST(Linear, NoRows) {
  Weight weight{8, 8, {}};
  weight.parts.push_back({0, 8, {WeightElement::bf16, 0, false}, memory().alloc(128)});
  linear().run({bf16_tensor(nullptr, 0, 8), weight, nullptr, bf16_tensor(nullptr, 0, 8)});
  wait();
}

TEST(RoundedRows, NeverBelowAndFew) {
  int64_t last = 0, distinct = 0;
  for (int64_t m = 1; m <= 8192; ++m) {
    const int64_t r = rounded_rows(m);
    EXPECT_GE(r, m);
    EXPECT_GE(r, last);
    EXPECT_LT(r, m + std::clamp<int64_t>(m / 4, 8, 256));
    distinct += r != last;
    last = r;
  }
  EXPECT_LE(distinct, 90);
}

}  // namespace
}  // namespace sluice::cuda::test
