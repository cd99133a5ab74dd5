#include "tensor/cuda/linear/stream_gemm.h"

#include <fmt/format.h>

#include <cmath>

#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT: the test's own vocabulary

// Cheap random values, exact in bf16 (a normal distribution of a weight this large would take longer than the
// test).
std::vector<float> noise(size_t n, uint64_t seed, float scale) {
  std::vector<float> v(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (float& x : v) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    x = scale * (float(int(state >> 56)) - 127.5f) / 128;  // 9 significant bits, so rounded
    x = bf16_to_f32(f32_to_bf16(x));
  }
  return v;
}

struct Case {
  int64_t m, n, k;
  bool bias = false, f32 = false;
  int64_t x_gap = 0;
};

class Product {
 public:
  explicit Product(const Case& c)
      : c_(c),
        x_(noise(size_t(c.m * (c.k + c.x_gap)), 1 + uint64_t(c.m), 1)),
        w_(noise(size_t(c.n * c.k), 2 + uint64_t(c.n), 0.1f)),
        bias_(noise(size_t(c.n), 3, 4)),
        device_x_(upload_bf16(x_)),
        device_w_(upload_bf16(w_)),
        device_bias_(upload(bias_)) {
    weight_.rows = c.n;
    weight_.cols = c.k;
  }

  // The output, [m, n + 8] with what lies between the rows; NaN where nothing was written.
  std::vector<float> run(const StreamConfig& config, int times = 1) {
    const int64_t stride = c_.n + 8;
    const DType dtype = c_.f32 ? DType::f32 : DType::bf16;
    DeviceBytes out(size_t(c_.m * stride) * dtype_size(dtype));
    const LinearArgs args{bf16_tensor(device_x_.data(), c_.m, c_.k, c_.k + c_.x_gap), weight_,
                          c_.bias ? device_bias_.as<float>() : nullptr,
                          Tensor{out.data(), dtype, c_.m, c_.n, stride}};
    for (int i = 0; i < times; ++i) stream_gemm(context(), args, device_w_.data(), config, workspace());
    if (c_.f32) return download<float>(out.data(), size_t(c_.m * stride));
    return download_bf16(out.data(), size_t(c_.m * stride));
  }

  // In float64, some of the columns: all of the first and last tile, and some between.
  void expect_right(const std::vector<float>& got) const {
    double difference = 0, size = 0;
    for (int64_t row = 0; row < c_.m; ++row) {
      for (int64_t i = 0; i < 8; ++i) ASSERT_TRUE(std::isnan(got[size_t(row * (c_.n + 8) + c_.n + i)]));
      for (int64_t column = 0; column < c_.n; ++column) {
        const float value = got[size_t(row * (c_.n + 8) + column)];
        ASSERT_FALSE(std::isnan(value)) << row << ", " << column;
        if (column >= 130 && column < c_.n - 130 && column % 613) continue;
        double want = c_.bias ? bias_[size_t(column)] : 0;
        for (int64_t i = 0; i < c_.k; ++i)
          want += double(x_[size_t(row * (c_.k + c_.x_gap) + i)]) * double(w_[size_t(column * c_.k + i)]);
        difference += (value - want) * (value - want);
        size += want * want;
      }
    }
    EXPECT_LT(std::sqrt(difference / size), c_.f32 ? 2e-5 : 2.5e-3);  // rounding to bf16: 1.7e-3
  }

  static void* workspace() {
    static const DeviceBytes bytes = [] {
      stream_gemm_prepare();
      DeviceBytes made(stream_gemm_workspace_bytes(context().multiprocessors));
      CUDA_CHECK(cudaMemset(made.data(), 0, made.bytes()));
      return made;
    }();
    return bytes.data();
  }

 private:
  const Case c_;
  const std::vector<float> x_, w_, bias_;
  const DeviceBytes device_x_, device_w_, device_bias_;
  Weight weight_;
};

StreamConfig config_for(const Case& c) {
  const LinearChoice choice =
      choose_linear({c.m, c.n, c.k, c.f32 ? DType::f32 : DType::bf16}, context().multiprocessors);
  StreamConfig config = choice.stream;
  EXPECT_TRUE(stream_gemm_supports(config)) << choice.text();
  return config;
}

void check(const Case& c, const StreamConfig& config) {
  SCOPED_TRACE(fmt::format("m {} n {} k {} bias {} f32 {} gap {}; {}", c.m, c.n, c.k, c.bias, c.f32, c.x_gap,
                           LinearChoice{LinearChoice::Way::stream, config}.text()));
  Product product(c);
  const std::vector<float> first = product.run(config), second = product.run(config, 3);
  product.expect_right(first);
  for (size_t i = 0; i < first.size(); ++i)
    ASSERT_TRUE(first[i] == second[i] || std::isnan(first[i])) << "not the same twice, at " << i;
}

void check(const Case& c) { check(c, config_for(c)); }

// Every kernel that was compiled, with tiles that are shared and not, full and not.
TEST(StreamGemm, EveryKernel) {
  int kernels = 0;
  for (int rows : {8, 16, 32})
    for (int depth : {64, 128, 256})
      for (int tile : {8, 24, 64})
        for (bool whole : {false, true}) {
          const StreamConfig config{rows, tile, depth, whole, 3};
          ASSERT_TRUE(stream_gemm_supports(config));
          ++kernels;
          check({rows - 1, 1000, depth == 64 ? 1096 : 1088, whole, !whole, 8}, config);
        }
  EXPECT_EQ(kernels, 54);
}
TEST(StreamGemm, EveryNumberOfRows) {
  for (int64_t m : {1, 2, 7, 8, 9, 16, 17, 25, 32}) {
    check({m, 576, 576});
    check({m, 384, 1536, true, m % 2 == 0, 64});
  }
}
TEST(StreamGemm, AwkwardShapes) {
  for (int64_t m : {1, 9, 32})
    for (int64_t n : {8, 72, 384})
      for (int64_t k : {8, 64, 72, 136, 576}) check({m, n, k, n == 72, k == 72, 8});
}
TEST(StreamGemm, LongSums) {
  for (int64_t m : {1, 16, 17, 32}) check({m, 576, 14336, true, true});
}
TEST(StreamGemm, ManyColumns) {
  for (int64_t m : {1, 16, 32}) {
    check({m, 49152, 576, false, true});
    check({m, 6144, 1536, true, false});
  }
}

// What a graph replays is what was enqueued, and the workspace is left as it was found.
TEST(StreamGemm, Replayed) {
  const Case c{5, 1000, 4096, true, true};
  Product product(c);
  const StreamConfig config = config_for(c);
  const std::vector<float> want = product.run(config);

  const std::vector<float> x = noise(size_t(c.m * c.k), 1 + uint64_t(c.m), 1),
                           w = noise(size_t(c.n * c.k), 2 + uint64_t(c.n), 0.1f);
  const DeviceBytes device_x = upload_bf16(x), device_w = upload_bf16(w),
                    bias = upload(noise(size_t(c.n), 3, 4));
  const void* map = device_w.data();
  Weight weight;
  weight.rows = c.n;
  weight.cols = c.k;
  std::vector<DeviceBytes> outs;
  for (int i = 0; i < 8; ++i) outs.emplace_back(size_t(c.m * c.n) * 4);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(context().stream, cudaStreamCaptureModeThreadLocal));
  for (DeviceBytes& out : outs)
    stream_gemm(context(),
                {bf16_tensor(device_x.data(), c.m, c.k), weight, bias.as<float>(),
                 Tensor{out.data(), DType::f32, c.m, c.n, c.n}},
                map, config, Product::workspace());
  CUDA_CHECK(cudaStreamEndCapture(context().stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) CUDA_CHECK(cudaGraphLaunch(exec, context().stream));
  for (DeviceBytes& out : outs) {
    const std::vector<float> got = download<float>(out.data(), size_t(c.m * c.n));
    for (int64_t row = 0; row < c.m; ++row)
      for (int64_t i = 0; i < c.n; ++i)
        ASSERT_EQ(got[size_t(row * c.n + i)], want[size_t(row * (c.n + 8) + i)]) << row << ", " << i;
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

// A row's result does not depend on the rows beside it (of the same padded number).
TEST(StreamGemm, RowsDoNotMix) {
  const int64_t n = 600, k = 1536;
  const std::vector<float> x = noise(size_t(16 * k), 11, 1), w = noise(size_t(n * k), 12, 0.1f);
  const DeviceBytes device_x = upload_bf16(x), device_w = upload_bf16(w);
  const void* map = device_w.data();
  Weight weight;
  weight.rows = n;
  weight.cols = k;
  const auto run = [&](int64_t first, int64_t rows) {
    DeviceBytes out(size_t(rows * n) * 4);
    stream_gemm(context(),
                {bf16_tensor(device_x.as<uint16_t>() + first * k, rows, k), weight, nullptr,
                 Tensor{out.data(), DType::f32, rows, n, n}},
                map, config_for({16, n, k}), Product::workspace());
    return download<float>(out.data(), size_t(rows * n));
  };
  const std::vector<float> all = run(0, 16);
  for (int64_t row : {0, 5, 15}) {
    const std::vector<float> alone = run(row, 1);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(all[size_t(row * n + i)], alone[size_t(i)]) << row << ", " << i;
  }
}

TEST(LinearChoice, IsMadeOfCompiledKernels) {
  for (int64_t m : {1, 8, 9, 16, 17, 32, 33, 128, 4096})
    for (int64_t n : {1, 8, 72, 576, 4096, 6144, 28672, 128256, 262144})
      for (int64_t k : {8, 72, 576, 640, 4096, 14336})
        for (DType out : {DType::bf16, DType::f32}) {
          const LinearChoice choice = choose_linear({m, n, k, out}, 132);
          EXPECT_EQ(choice.way == LinearChoice::Way::stream, m <= 32);
          if (choice.way != LinearChoice::Way::stream) continue;
          EXPECT_TRUE(stream_gemm_supports(choice.stream)) << choice.text();
          EXPECT_GE(choice.stream.rows, m);
          EXPECT_TRUE(choice.stream.depth == 64 || k % 64 == 0) << choice.text();
        }
}
// What was measured to be best for the 8B shapes (README.md).
TEST(LinearChoice, OfAnEightBillionModel) {
  const auto text = [](int64_t m, int64_t n, int64_t k) {
    return choose_linear({m, n, k, DType::bf16}, 132).text();
  };
  EXPECT_EQ(text(1, 6144, 4096), "stream: 8 rows, whole tile 48 x 256, 7 stages");
  EXPECT_EQ(text(1, 4096, 4096), "stream: 8 rows, whole tile 32 x 256, 10 stages");
  EXPECT_EQ(text(1, 28672, 4096), "stream: 8 rows, whole tile 56 x 256, 6 stages");
  EXPECT_EQ(text(1, 4096, 14336), "stream: 8 rows, whole tile 32 x 256, 10 stages");
  EXPECT_EQ(text(1, 128256, 4096), "stream: 8 rows, tile 64 x 128, 11 stages");
  EXPECT_EQ(text(16, 4096, 14336), "stream: 16 rows, whole tile 32 x 256, 8 stages");
  EXPECT_EQ(text(32, 6144, 4096), "stream: 32 rows, whole tile 48 x 256, 5 stages");
  EXPECT_EQ(text(32, 4096, 14336), "stream: 32 rows, tile 64 x 128, 8 stages");
  EXPECT_EQ(text(33, 6144, 4096), "cublaslt");
}

}  // namespace
}  // namespace sluice::cuda
