// cuda_eight_bit_bench [rows ...]: products of eight-bit factors over the shapes of an 8B model, weights
// rotated past the L2, in a graph: cuBLASLt's (its first recommendation and the best of eight), the streaming
// kernel's with tiles of both kinds, the quantization of x; and the products of a decode step one after the
// other. A line each: us, share of the limit (bytes of w at 4.56 TB/s, or 1,500 T operations a second).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "tensor/cuda/linear/bias.h"
#include "tensor/cuda/linear/cublaslt.h"
#include "tensor/cuda/linear/stream_gemm.h"
#include "tensor/cuda/linear/stream_gemm_8bit.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT

constexpr double kBytesPerUs = 4.56e6, kOpsPerUs = 1500e6;
constexpr int64_t kMostRows = 8192;

// Random bytes: any sign, magnitudes below 2 in e4m3.
void fill(const DeviceBytes& card) {
  static const auto values = [] {
    std::mt19937 rng(1);
    std::vector<uint32_t> words(1 << 20);
    for (uint32_t& w : words) w = uint32_t(rng()) & 0xbfbfbfbfu;
    return words;
  }();
  for (size_t at = 0; at < card.bytes(); at += values.size() * 4)
    CUDA_CHECK(cudaMemcpy(card.as<char>() + at, values.data(), std::min(values.size() * 4, card.bytes() - at),
                          cudaMemcpyHostToDevice));
}

struct Row {
  const char* name;
  int64_t n, k;
};
constexpr Row kShapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}};

struct Bench {
  MemoryBackend memory;
  std::unique_ptr<CublasLt> cublas;
  DeviceBytes weights{size_t(8) << 30}, w_scales{size_t(1) << 20};
  DeviceBytes x{kMostRows * 14336 * 2}, x8{kMostRows * 14336}, x_scales{kMostRows * 112 * 4};
  DeviceBytes out{kMostRows * 28672 * 4};
  DeviceBytes workspace{stream_gemm_workspace_bytes(context().multiprocessors)};

  Bench() {
    auto made = CublasLt::make(context(), memory);
    CHECK(made.ok(), "no cuBLASLt");
    cublas = std::move(*made);
    stream_gemm_8bit_prepare();
    CUDA_CHECK(cudaMemset(workspace.data(), 0, workspace.bytes()));
    for (const DeviceBytes* b : {&weights, &x, &x8}) fill(*b);
    for (const DeviceBytes* b : {&w_scales, &x_scales}) {
      const std::vector<float> scales(b->bytes() / sizeof(float), 0.01f);
      CUDA_CHECK(cudaMemcpy(b->data(), scales.data(), b->bytes(), cudaMemcpyHostToDevice));
    }
    wait();
  }
  QuantizedRows rows(Factors f, int64_t m, int64_t k) const {
    return {x8.data(), x_scales.as<float>(), f, m, k, m};
  }
  void stream(Factors f, int64_t m, int64_t n, int64_t k, size_t offset, const StreamConfig& c) {
    stream_gemm_8bit(context(),
                     {rows(f, m, k),
                      {weights.as<char>() + offset, w_scales.as<float>(), (k / 128 + 3) / 4 * 4, n, k},
                      nullptr,
                      bf16_tensor(out.data(), m, n)},
                     c, workspace.data());
  }
  Product product(Factors f, int64_t m, int64_t n, int64_t k, size_t offset) const {
    return {Tensor{x8.data(), DType::i8, m, k, k},
            weights.as<char>() + offset,
            nullptr,
            Tensor{out.data(), f == Factors::int8 ? DType::i32 : DType::bf16, m, n, n},
            f,
            w_scales.as<float>(),
            x_scales.as<float>()};
  }
  template <typename F>
  double us(int64_t m, int64_t n, int64_t k, const F& enqueue) {
    const size_t bytes = size_t(n) * size_t(k);
    const int copies = int(std::max<size_t>(3, (size_t(200) << 20) / bytes)),
              calls = m >= 1024 ? 4 : std::max(copies, 12);
    return 1e3 * double(graph_ms(calls, 5, [&](int i) { enqueue(size_t(i % copies) * bytes); }));
  }
};

void print(const char* way, const Row& r, int64_t m, double us, const std::string& note) {
  const double limit = std::max(double(r.n) * double(r.k) / kBytesPerUs,
                                2.0 * double(m) * double(r.n) * double(r.k) / kOpsPerUs);
  std::printf("%-8s m %5ld %-14s %8.2f us  %5.1f %%  %s\n", r.name, long(m), way, us, 100 * limit / us,
              note.c_str());
  std::fflush(stdout);
}

void bench(Bench& b, const Row& r, int64_t m) {
  for (const Factors factors : {Factors::fp8, Factors::fp8_blocks, Factors::int8}) {
    const char* name = factors == Factors::fp8 ? "fp8" : factors == Factors::int8 ? "int8" : "fp8 blocks";
    if (m > 32) {
      const auto algorithms = b.cublas->candidates(b.product(factors, m, r.n, r.k, 0), 8);
      double first = 0, best = 1e9;
      for (const auto& a : algorithms) {
        const double us =
            b.us(m, r.n, r.k, [&](size_t at) { b.cublas->run_with(b.product(factors, m, r.n, r.k, at), a); });
        if (first == 0) first = us;
        best = std::min(best, us);
      }
      print("cublas", r, m, best, std::string(name) + ", first " + std::to_string(first));
    }
    if (m > 128) continue;
    for (const bool whole : {true, false}) {
      const StreamConfig c =
          stream_config({m, r.n, r.k, DType::bf16, factors}, whole, context().multiprocessors);
      if (!stream_gemm_8bit_supports(c)) continue;
      const StreamConfig chosen =
          m <= 32 ? choose_linear({m, r.n, r.k, DType::bf16, factors}, context().multiprocessors).stream
                  : StreamConfig{};
      print("stream", r, m, b.us(m, r.n, r.k, [&](size_t at) { b.stream(factors, m, r.n, r.k, at, c); }),
            std::string(name) + ", " + LinearChoice{LinearChoice::Way::stream, c}.text() +
                (chosen == c ? " (chosen)" : ""));
    }
  }
  const double us = 1e3 * double(graph_ms(16, 5, [&](int) {
                      quantize_rows(context(), bf16_tensor(b.x.data(), m, r.k), b.rows(Factors::fp8, m, r.k));
                    }));
  std::printf("%-8s m %5ld %-14s %8.2f us\n", r.name, long(m), "quantize x", us);
}

void chain(Bench& b, int64_t m, int between, bool quantize) {
  const float ms = graph_ms(1, 5, [&](int) {
    size_t offset = 0;
    for (int layer = 0; layer < 32; ++layer)
      for (const Row& r : kShapes) {
        if (quantize) quantize_rows(context(), bf16_tensor(b.x.data(), m, r.k), b.rows(Factors::fp8, m, r.k));
        b.stream(Factors::fp8, m, r.n, r.k, offset,
                 choose_linear({m, r.n, r.k, DType::bf16, Factors::fp8}, context().multiprocessors).stream);
        offset += size_t(r.n) * size_t(r.k);
        for (int i = 0; i < between; ++i) round_bias(context(), b.w_scales.as<float>(), b.out.data(), 256);
      }
  });
  std::printf("32 layers m %3ld, %d small kernels after each product%s: %.3f ms, %.1f %% of the floor\n",
              long(m), between, quantize ? ", x quantized before each" : "", double(ms),
              100 * 32 * 218.1e6 / (double(ms) * 1e3 * kBytesPerUs));
}

void run(int argc, char** argv) {
  Bench b;
  std::vector<int64_t> rows = {1, 16, 32, 64, 128, 640, 2048};
  if (argc > 1) {
    rows.clear();
    for (int i = 1; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  }
  for (const int64_t m : rows)
    if (m <= 32)
      for (const int between : {0, 1, 2})
        for (const bool quantize : {false, true}) chain(b, m, between, quantize);
  for (const int64_t m : rows)
    for (const Row& r : kShapes) bench(b, r, m);
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) { sluice::cuda::run(argc, argv); }
