// GB/s from rows that lie in memory as a file in the page cache does (a mapping that this process has not
// touched), to the card: weights of the Llama-3.1-8B layers' sizes, `GiB` in all (default 6).
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tensor/cuda/load/weight_loader.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda::test {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class MappedRows final : public RowSource {
 public:
  MappedRows(const std::byte* data, int64_t rows, int64_t cols, WeightFormat format, bool stored)
      : data_(data), rows_(rows), cols_(cols), format_(format), stored_(stored) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  void decode(int64_t row, DecodedRow& out) const override {
    const std::byte* at = data_ + size_t(row) * row_bytes();
    if (format_.is_float()) {
      out.raw.assign(at, at + row_bytes());
      return;
    }
    const auto* q = reinterpret_cast<const int8_t*>(at);
    out.q.assign(q, q + cols_);
    out.scale.assign(size_t(cols_ / format_.group), 0.01f);
    out.min.assign(size_t(cols_ / format_.group), 0);
  }
  std::span<const std::byte> stored_row(int64_t row) const override {
    if (!stored_) return {};
    return {data_ + size_t(row) * row_bytes(), row_bytes()};
  }
  size_t row_bytes() const {
    return size_t(cols_) * (format_.element == WeightElement::f32 ? 4 : format_.is_float() ? 2 : 1);
  }

 private:
  const std::byte* data_;
  int64_t rows_, cols_;
  WeightFormat format_;
  bool stored_;
};

const std::byte* map(int file, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) std::perror("mmap"), std::exit(1);
  return static_cast<const std::byte*>(p);
}

void bench(int file, size_t bytes, WeightFormat format, bool stored, const WeightLoaderOptions& options) {
  constexpr int64_t kShapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  MemoryBackend memory;
  const std::byte* data = map(file, bytes);
  const auto begin = Clock::now();
  double waited = 0;
  {
    std::vector<Weight> weights;
    const auto loader = make_weight_loader(context(), memory, options);
    size_t at = 0, sent = 0;
    for (int i = 0;; ++i) {
      const auto [n, k] = kShapes[i % 4];
      const MappedRows rows(data + at, n, k, format, stored);
      if (at + size_t(n) * rows.row_bytes() > bytes) break;
      const Backend::PackSource source{&rows, {}};
      auto w = loader->pack(std::span(&source, 1));
      if (!w) std::printf("%s\n", w.error().message.c_str()), std::exit(1);
      weights.push_back(std::move(*w));
      at += size_t(n) * rows.row_bytes(), sent += size_t(n * k) * 2;
      if (i == 0) waited = seconds_since(begin);
    }
    const auto end = Clock::now();
    loader->finish();
    const double s = seconds_since(begin);
    std::printf(
        "%-5s %s threads %2d buffers %d x %5zu KiB: %6.2f s, %5.1f GB/s read, %5.1f GB/s sent (%2.0f %% of "
        "55.4); first weight %.3f s, finish %.3f s\n",
        weight_element_name(format.element), stored ? "stored " : "decoded", options.threads,
        options.buffers_per_thread, options.buffer_bytes >> 10, s, double(at) / s * 1e-9,
        double(sent) / s * 1e-9, double(sent) / s * 1e-9 / 55.4 * 100, waited, seconds_since(end));
    std::fflush(stdout);
  }
  munmap(const_cast<std::byte*>(data), bytes);
}

}  // namespace
}  // namespace sluice::cuda::test

int main(int argc, char** argv) {
  using namespace sluice;
  using namespace sluice::cuda::test;
  const size_t bytes = size_t(argc > 1 ? std::atol(argv[1]) : 6) << 30;
  const int file = memfd_create("weights", 0);
  if (ftruncate(file, off_t(bytes)) != 0) return std::perror("ftruncate"), 1;
  auto* out = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 16; ++t)
    threads.emplace_back([=] {
      for (size_t i = bytes / 16 * t; i < bytes / 16 * (t + 1); i += 2) {
        const uint16_t v = uint16_t(0x3c00 + i * 2654435761u % 512);
        std::memcpy(out + i, &v, 2);
      }
    });
  for (std::thread& t : threads) t.join();
  munmap(out, bytes);
  std::printf("filled %zu GiB in %.1f s\n", bytes >> 30, seconds_since(begin));
  context();
  CUDA_CHECK(cudaFree(nullptr));
  const WeightFormat bf16{WeightElement::bf16, 0, false};
  const auto options = [](int threads, size_t kib, int buffers) {
    return sluice::cuda::WeightLoaderOptions{threads, kib << 10, buffers};
  };
  for (size_t kib : {512, 1024, 2048, 4096}) bench(file, bytes, bf16, true, options(16, kib, 4));
  bench(file, bytes, bf16, true, options(16, 2048, 2));
  bench(file, bytes, bf16, true, options(8, 2048, 4));
  bench(file, bytes, bf16, true, options(4, 2048, 4));
  bench(file, bytes, bf16, false, options(16, 2048, 4));
  bench(file, bytes, {WeightElement::f16, 0, false}, true, options(16, 2048, 4));
  bench(file, bytes, {WeightElement::f32, 0, false}, true, options(16, 2048, 4));
  bench(file, bytes / 2, {WeightElement::int8, 32, false}, false, options(16, 2048, 4));
}
