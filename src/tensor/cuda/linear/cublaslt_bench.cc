// cuBLASLt's products on the Llama-3.1-8B shapes: its first recommendation, what tune() made of it, and the
// best of eight, as a graph's calls over weights that rotate past the L2; and what a recommendation costs the
// host.
#include <chrono>
#include <cstdio>

#include "tensor/cuda/linear/tune.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda::test {
namespace {

struct Shape {
  const char* name;
  int64_t n, k;
  DType out = DType::bf16;
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096},
                             {"o", 4096, 4096},
                             {"gate_up", 28672, 4096},
                             {"down", 4096, 14336},
                             {"head", 128256, 4096, DType::f32}};

void fill(void* card, size_t elements) {
  static const auto values = [] {
    std::vector<uint16_t> bits;
    for (float v : random_bf16(1 << 22, 7, 0.5f)) bits.push_back(f32_to_bf16(v));
    return bits;
  }();
  for (size_t at = 0; at < elements; at += values.size())
    CUDA_CHECK(cudaMemcpy(static_cast<uint16_t*>(card) + at, values.data(),
                          std::min(values.size(), elements - at) * 2, cudaMemcpyHostToDevice));
}

constexpr int64_t kRows[] = {32, 64, 128, 256, 640, 2048, 2176, 4096, 8192};

// Turn by turn, since the card's clock falls under load: what is timed later would look slower. The last way is
// run()'s.
std::vector<double> medians_us(CublasLt& cublas, const std::vector<cublasLtMatmulAlgo_t>& algorithms, int calls,
                               const auto& product) {
  std::vector<std::vector<float>> us(algorithms.size() + 1);
  for (int turn = -2; turn < 7; ++turn)
    for (size_t c = 0; c < us.size(); ++c) {
      const float ms = graph_ms(calls, 1, [&](int i) {
        if (c < algorithms.size())
          cublas.run_with(product(i), algorithms[c]);
        else
          cublas.run(product(i));
      });
      if (turn >= 0) us[c].push_back(1e3f * ms);
    }
  std::vector<double> medians;
  for (auto& times : us) {
    std::sort(times.begin(), times.end());
    medians.push_back(double(times[times.size() / 2]));
  }
  return medians;
}

void bench(CublasLt& cublas, const Shape& s) {
  using Clock = std::chrono::steady_clock;
  const int64_t most = s.n > 100000 ? 256 : std::end(kRows)[-1];
  const size_t bytes = size_t(s.n * s.k) * 2;
  const int copies = std::max(2, int((size_t{200} << 20) / bytes) + 1);
  std::vector<DeviceBytes> weights;
  TuneShape shape{s.n, s.k, s.out, {}, {}};
  for (int i = 0; i < copies; ++i) {
    fill(weights.emplace_back(bytes).data(), size_t(s.n * s.k));
    shape.weights.push_back(weights.back().data());
  }
  for (int64_t m : kRows)
    if (m <= most) shape.rows.push_back(rounded_rows(m));
  auto begin = Clock::now();
  const Tuned tuned = tune(context(), cublas, std::span(&shape, 1));
  std::printf("%s: tuned in %.3f s: %d products, %.3f to %.3f ms\n", s.name,
              std::chrono::duration<double>(Clock::now() - begin).count(), tuned.products, tuned.first_ms,
              tuned.best_ms);
  const DeviceBytes x(size_t(most * s.k) * 2), out(size_t(most * s.n) * dtype_size(s.out));
  fill(x.data(), size_t(most * s.k));
  for (int64_t m : kRows) {
    if (m > most) continue;
    const auto product = [&](int i) {
      return Product{bf16_tensor(x.data(), m, s.k), weights[size_t(i % copies)].data(), nullptr,
                     Tensor{out.data(), s.out, m, s.n, s.n}};
    };
    begin = Clock::now();
    cublas.candidates(product(0), 1);
    const double host_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    const auto medians = medians_us(cublas, cublas.candidates(product(0), 8), m >= 1024 ? 2 : 8, product);
    const double first = medians[0], run = medians.back();
    const auto best = std::min_element(medians.begin(), medians.end() - 1);
    std::printf(
        "%-8s m %5ld  run %8.1f us %5.2f TB/s %4.0f TFLOP/s  first %8.1f (%+5.1f %%)  best %8.1f (no. %ld of "
        "%zu, "
        "%+5.1f %%)  host %4.0f us\n",
        s.name, long(m), run, (double(bytes) + double(m) * double(s.k + s.n) * 2) / run * 1e-6,
        2.0 * double(m) * double(s.n) * double(s.k) / run * 1e-6, first, (first / run - 1) * 100, *best,
        long(best - medians.begin()), medians.size() - 1, (*best / run - 1) * 100, host_us);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sluice::cuda::test

int main() {
  using namespace sluice::cuda::test;
  MemoryBackend memory;
  auto cublas = sluice::cuda::CublasLt::make(context(), memory);
  if (!cublas) return std::printf("%s\n", cublas.error().message.c_str()), 1;
  for (const Shape& s : kShapes) bench(**cublas, s);
}
