// cuBLASLt's products on the Llama-3.1-8B shapes: its first recommendation against the best of eight, as a
// graph's calls over weights that rotate past the L2, and what a recommendation costs the host.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tensor/cuda/linear/cublaslt.h"
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

void bench(CublasLt& cublas, MemoryBackend& memory, const Shape& s, int64_t m) {
  const size_t bytes = size_t(s.n * s.k) * 2;
  const int copies = std::max(2, int((size_t{200} << 20) / bytes) + 1);
  std::vector<Weight> weights;
  for (int i = 0; i < copies; ++i) {
    weights.push_back({s.n, s.k, {}});
    weights.back().parts.push_back({0, s.n, {WeightElement::bf16, 0, false}, memory.alloc(bytes)});
    fill(weights.back().parts[0].data.data(), size_t(s.n * s.k));
  }
  const DeviceBytes x(size_t(m * s.k) * 2), out(size_t(m * s.n) * 4);
  fill(x.data(), size_t(m * s.k));
  const auto args = [&](int i) {
    return LinearArgs{bf16_tensor(x.data(), m, s.k), weights[size_t(i % copies)], nullptr,
                      Tensor{out.data(), s.out, m, s.n, s.n}};
  };
  const int calls = m >= 2048 ? 4 : 16;
  const auto time_us = [&](const auto& run) { return 1e3f * graph_ms(calls, 5, run); };
  const auto begin = std::chrono::steady_clock::now();
  const auto one = cublas.candidates(args(0), 1);
  const double host_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  const auto algorithms = cublas.candidates(args(0), 8);
  float first = 0, best = 1e30f;
  size_t which = 0;
  for (size_t c = 0; c < algorithms.size(); ++c) {
    const float us = time_us([&](int i) { cublas.run_with(args(i), algorithms[c]); });
    if (c == 0) first = us;
    if (us < best) best = us, which = c;
  }
  const float rounded = time_us([&](int i) { cublas.run(args(i)); });
  const double flops = 2.0 * double(m) * double(s.n) * double(s.k);
  std::printf(
      "%-8s m %5ld  first %8.1f  as run %8.1f  best %8.1f us (no. %zu of %zu)  %5.2f TB/s %4.0f TFLOP/s  host "
      "%5.0f us\n",
      s.name, long(m), double(first), double(rounded), double(best), which, algorithms.size(),
      (double(bytes) + double(m) * double(s.k + s.n) * 2) / double(best) * 1e-6, flops / double(best) * 1e-6,
      host_us);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice::cuda::test

int main(int argc, char** argv) {
  using namespace sluice::cuda::test;
  MemoryBackend memory;
  auto cublas = sluice::cuda::CublasLt::make(context(), memory);
  if (!cublas) return std::printf("%s\n", cublas.error().message.c_str()), 1;
  for (const Shape& s : kShapes)
    for (int64_t m : {32, 64, 128, 256, 640, 2048, 2176, 4096, 8192}) {
      if (s.n > 100000 && m > 256) continue;
      if (argc > 1 && m != std::atol(argv[1])) continue;
      bench(**cublas, memory, s, m);
    }
}
