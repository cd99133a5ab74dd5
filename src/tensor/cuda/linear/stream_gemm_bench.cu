// cuda_stream_gemm_bench [table|tune] [rows ...]: the streaming product over the shapes of an 8B model, weights
// rotated past the L2, in a graph, and the products of a decode step one after the other. One line each: us,
// GB/s, share of what a read-only kernel reaches on an H200 (4.56 TB/s). `tune` tries everything that was
// compiled and prints the best.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/linear/stream_gemm.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT

constexpr double kCeiling = 4.56e12;

__global__ void fill(uint32_t* p, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    uint32_t h = uint32_t(i) * 2654435761u + seed;
    h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12, h *= 0x297a2d39u, h ^= h >> 15;
    p[i] = (h & 0x80ff80ffu) | 0x3c003c00u;  // two bf16 of size 2^-7 .. 2^-6
  }
}

// Stands for the small ops between the products: reads a row of what came before, writes one.
__global__ void small(const uint32_t* in, uint32_t* out) {
  let_next_start();
  wait_for_previous();
  out[threadIdx.x] = in[threadIdx.x] & 0x3fff3fffu;
}

struct Bench {
  DeviceBytes weights{size_t(15) << 30};
  DeviceBytes x{32 * 14336 * 2};
  DeviceBytes out{size_t(32) * 128256 * 4};
  DeviceBytes workspace{stream_gemm_workspace_bytes(context().multiprocessors)};

  Bench() {
    stream_gemm_prepare();
    CUDA_CHECK(cudaMemset(workspace.data(), 0, workspace.bytes()));
    fill<<<1024, 256, 0, context().stream>>>(weights.as<uint32_t>(), weights.bytes() / 4, 1);
    fill<<<1024, 256, 0, context().stream>>>(x.as<uint32_t>(), x.bytes() / 4, 2);
    wait();
  }
  void enqueue(int64_t m, int64_t n, int64_t k, bool f32, size_t offset, const StreamConfig& c,
               const Context& on = context()) {
    Weight w;
    w.rows = n;
    w.cols = k;
    const void* map = weights.as<char>() + offset;
    stream_gemm(
        on,
        {bf16_tensor(x.data(), m, k), w, nullptr, Tensor{out.data(), f32 ? DType::f32 : DType::bf16, m, n, n}},
        map, c, workspace.data());
  }
  float shape_us(int64_t m, int64_t n, int64_t k, bool f32, const StreamConfig& c,
                 const Context& on = context()) {
    const size_t bytes = size_t(n) * size_t(k) * 2;
    const int count = int(std::max<size_t>(4, (size_t(3) << 30) / bytes));
    return 1000 * graph_ms(count, 5, [&](int i) { enqueue(m, n, k, f32, size_t(i) * bytes, c, on); });
  }
  // The four products of each of 32 layers, and so many small kernels after each; ms of all.
  template <typename F>
  float chain_ms(int64_t m, const F& config_of, int between = 0) {
    return graph_ms(1, 5, [&](int) {
      size_t offset = 0;
      for (int layer = 0; layer < 32; ++layer)
        for (auto [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}) {
          enqueue(m, n, k, false, offset, config_of(n, k));
          offset += size_t(n) * size_t(k) * 2;
          for (int i = 0; i < between; ++i)
            launch(context(), small, dim3(1), dim3(1024), 0, out.as<uint32_t>(), x.as<uint32_t>());
        }
    });
  }
};

struct Row {
  const char* name;
  int64_t n, k;
  bool f32;
};
constexpr Row kRows[] = {{"qkv", 6144, 4096, false},
                         {"o", 4096, 4096, false},
                         {"gate+up", 28672, 4096, false},
                         {"down", 4096, 14336, false},
                         {"head", 128256, 4096, true}};

StreamConfig choice(int64_t m, const Row& r) {
  return choose_linear({m, r.n, r.k, r.f32 ? DType::f32 : DType::bf16}, context().multiprocessors).stream;
}
void print_line(const Row& r, int64_t m, double us, const StreamConfig& c) {
  const double bytes = double(r.n) * double(r.k) * 2;
  std::printf("%-8s m %3d  %7.2f us  %5.0f GB/s  %5.1f %%  %s\n", r.name, int(m), us, bytes / us / 1e3,
              100 * bytes / (us * 1e-6) / kCeiling, LinearChoice{LinearChoice::Way::stream, c}.text().c_str());
  std::fflush(stdout);
}

void table(Bench& bench, int64_t m) {
  for (const Row& r : kRows) print_line(r, m, bench.shape_us(m, r.n, r.k, r.f32, choice(m, r)), choice(m, r));
  for (int between : {0, 1, 2}) {
    const double ms = bench.chain_ms(
        m,
        [&](int n, int k) {
          return choice(m, {"", n, k, false});
        },
        between);
    std::printf("32 layers m %3d, %d small kernels after each product: %.3f ms, %.1f %%\n", int(m), between, ms,
                100 * 32 * 436.2e6 / (ms * 1e-3) / kCeiling);
  }
}

void tune(Bench& bench, int64_t m) {
  for (const Row& r : kRows) {
    std::vector<std::pair<double, StreamConfig>> tried;
    for (int tile = 16; tile <= stream_tile(8); tile += 8)
      for (int depth : {64, 128, 256})
        for (int ring_kb : {160, 206})
          for (bool whole : {false, true}) {
            StreamConfig c;
            c.rows = choice(m, r).rows, c.tile = tile, c.depth = depth, c.whole_tiles = whole;
            c.stages = int(std::min<int64_t>(kMaxStreamStages, ring_kb * 1024 / stream_stage_bytes(c)));
            const int64_t tiles = (r.n + tile - 1) / tile, rounds = (tiles + 131) / 132;
            // Whole tiles must fill the card well; shared ones may as well be of full height.
            if (whole ? tiles < rounds * 120 : tile != stream_tile(8)) continue;
            if (stream_gemm_supports(c)) tried.emplace_back(bench.shape_us(m, r.n, r.k, r.f32, c), c);
          }
    std::sort(tried.begin(), tried.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < std::min<size_t>(5, tried.size()); ++i)
      print_line(r, m, tried[i].first, tried[i].second);
  }
}

void run(int argc, char** argv) {
  Bench bench;
  std::vector<int64_t> rows = {1, 8, 16, 32};
  if (argc > 2) {
    rows.clear();
    for (int i = 2; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  }
  for (int64_t m : rows) {
    if (argc > 1 && !std::strcmp(argv[1], "tune"))
      tune(bench, m);
    else
      table(bench, m);
  }
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) { sluice::cuda::run(argc, argv); }
