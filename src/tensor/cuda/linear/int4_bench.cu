// cuda_int4_bench [table|tune|chain|gemm] [rows ...]: products with 4-bit weights (groups of 128) over the
// shapes of an 8B model, weights rotated past the L2, in a graph. One line each: us, GB/s, share of what a
// read-only kernel reaches on an H200 (4.56 TB/s). `tune` tries what was compiled and prints the best; `chain`
// runs the four products of 32 layers one after the other.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/linear/int4_gemm.h"
#include "tensor/cuda/linear/int4_random.h"
#include "tensor/cuda/linear/int4_stream.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT

constexpr double kCeiling = 4.56e12;
constexpr int kGroup = 128, kMostRows = 2048;

// Stands for the small ops between the products: reads a row of what came before, writes one.
__global__ void small(const uint32_t* in, uint32_t* out) {
  let_next_start();
  wait_for_previous();
  out[threadIdx.x] = in[threadIdx.x] & 0x3fff3fffu;
}

struct Row {
  const char* name;
  int64_t n, k;
};
constexpr Row kRows[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}};

Int4Layout layout_of(const Row& r) { return {r.n, r.k, kGroup}; }

struct Bench {
  DeviceBytes weights{size_t(4) << 30};
  DeviceBytes x{size_t(kMostRows) * 14336 * 2};
  DeviceBytes out{size_t(kMostRows) * 28672 * 2};

  Bench() {
    int4_stream_prepare();
    int4_gemm_prepare();
    // Blocks of one size, whatever the shape: all shapes' weights are the same bytes.
    const int64_t panels = int64_t(weights.bytes()) / layout_of(kRows[0]).panel_bytes();
    int4_random(context(), weights.data(), {panels * kPanelRows, 4096, kGroup}, 1, 0.02f);
    const DeviceBytes part = upload_bf16(random_bf16(size_t(1) << 20, 1));
    for (size_t at = 0; at < x.bytes(); at += part.bytes())
      CUDA_CHECK(cudaMemcpy(x.as<char>() + at, part.data(), std::min(part.bytes(), x.bytes() - at),
                            cudaMemcpyDeviceToDevice));
    wait();
  }
  void enqueue(int64_t m, const Row& r, size_t offset, const Int4StreamConfig& c) {
    Weight w;
    w.rows = r.n, w.cols = r.k;
    int4_stream(context(), {bf16_tensor(x.data(), m, r.k), w, nullptr, bf16_tensor(out.data(), m, r.n)},
                weights.as<char>() + offset, layout_of(r), c);
  }
  float shape_us(int64_t m, const Row& r, const Int4StreamConfig& c, size_t span = size_t(1) << 30) {
    const size_t bytes = layout_of(r).bytes();
    const int count = int(std::max<size_t>(4, span / bytes));
    return 1000 * graph_ms(count, 3, [&](int i) { enqueue(m, r, size_t(i) * bytes, c); });
  }
  float gemm_us(int64_t m, const Row& r, const Int4GemmConfig& c) {
    const size_t bytes = layout_of(r).bytes();
    const int count = int(std::clamp<size_t>((size_t(1) << 30) / bytes, 4, m > 512 ? 8 : 32));
    Weight w;
    w.rows = r.n, w.cols = r.k;
    return 1000 * graph_ms(count, 3, [&](int i) {
             int4_gemm(context(), {bf16_tensor(x.data(), m, r.k), w, nullptr, bf16_tensor(out.data(), m, r.n)},
                       weights.as<char>() + size_t(i) * bytes, layout_of(r), c);
           });
  }
  using ConfigOf = std::function<Int4StreamConfig(const Row&)>;
  float chain_ms(int64_t m, const ConfigOf& config_of, int between) {
    std::vector<Int4StreamConfig> configs;
    for (const Row& r : kRows) configs.push_back(config_of(r));
    return graph_ms(1, 5, [&](int) {
      size_t offset = 0;
      for (int layer = 0; layer < 32; ++layer)
        for (size_t i = 0; i < std::size(kRows); ++i) {
          enqueue(m, kRows[i], offset, configs[i]);
          offset += layout_of(kRows[i]).bytes();
          for (int s = 0; s < between; ++s)
            launch(context(), small, dim3(1), dim3(1024), 0, out.as<uint32_t>(), x.as<uint32_t>());
        }
    });
  }
};

Int4Shape shape_of(int64_t m, const Row& r) { return {m, r.n, r.k, kGroup}; }
Int4StreamConfig choice(int64_t m, const Row& r) {
  return choose_int4_stream(shape_of(m, r), context().multiprocessors);
}

void print_line(const Row& r, int64_t m, double us, const Int4StreamConfig& c) {
  const auto bytes = double(layout_of(r).bytes());
  std::printf("%-8s m %3d  %7.2f us  %5.0f GB/s  %5.1f %%  %s\n", r.name, int(m), us, bytes / us / 1e3,
              100 * bytes / (us * 1e-6) / kCeiling, c.text().c_str());
  std::fflush(stdout);
}

void chain(Bench& bench, int64_t m) {
  double bytes = 0;
  for (const Row& r : kRows) bytes += 32 * double(layout_of(r).bytes());
  for (const int kb : {110, 160, 227})
    for (const int between : {0, 2}) {
      const double ms = bench.chain_ms(
          m,
          [&](const Row& r) {
            const Int4StreamConfig c = choice(m, r);
            const Int4StreamConfig less = with_stages(c, shape_of(m, r), context().multiprocessors, kb * 1024);
            return less.stages ? less : c;
          },
          between);
      std::printf("32 layers m %3d, %d KB, %d small kernels after each product: %.3f ms, %.1f %%\n", int(m), kb,
                  between, ms, 100 * bytes / (ms * 1e-3) / kCeiling);
      std::fflush(stdout);
    }
}

void table(Bench& bench, int64_t m) {
  for (const Row& r : kRows) print_line(r, m, bench.shape_us(m, r, choice(m, r)), choice(m, r));
}

void tune(Bench& bench, int64_t m) {
  for (const Row& r : kRows) {
    std::vector<std::pair<double, Int4StreamConfig>> tried;
    for (const int panels : {2, 3, 4})
      for (const int warp_rows : {1, 2, 3, 4, 7, 8})
        for (const int slices : {1, 2, 4, 8, 16})
          for (const int cluster : {1, 2, 4})
            for (const int stage_blocks : {1, 2, 4}) {
              Int4StreamConfig c{.rows = choice(m, r).rows,
                                 .panels = panels,
                                 .warp_rows = warp_rows,
                                 .slices = slices,
                                 .cluster = cluster,
                                 .stage_blocks = stage_blocks};
              const int64_t tiles = layout_of(r).panels() / c.tile_panels() * c.cluster,
                            rounds = (tiles + 131) / 132;
              if (c.tile_panels() % cluster || tiles < rounds * 112 || panels * stage_blocks > 8 ||
                  c.warps() < 6 || c.warps() > int4_most_warps(c.rows, panels))
                continue;
              c = with_stages(c, shape_of(m, r), context().multiprocessors, 227 * 1024);
              if (!int4_stream_supports(c, kGroup)) continue;
              tried.emplace_back(bench.shape_us(m, r, c, size_t(150) << 20), c);
            }
    std::sort(tried.begin(), tried.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < std::min<size_t>(8, tried.size()); ++i)
      print_line(r, m, tried[i].first, tried[i].second);
  }
}

// The kernel for many rows: what is chosen, and the best of all.
void gemm(Bench& bench, int64_t m) {
  for (const Row& r : kRows) {
    const Int4GemmConfig chosen = choose_int4_gemm(shape_of(m, r), true, context().multiprocessors);
    std::vector<std::pair<double, Int4GemmConfig>> tried;
    for (const int columns : {16, 32, 64, 96, 128, 160})
      for (const int cluster : {1, 2, 4}) {
        const Int4GemmConfig c{columns, cluster};
        const bool few = 2 * m <= columns && columns > 32, many = m > 8 * columns;
        if (int4_gemm_supports(c, kGroup) && !few && !many && !(cluster > 1 && m > 160))
          tried.emplace_back(bench.gemm_us(m, r, c), c);
      }
    std::sort(tried.begin(), tried.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < tried.size(); ++i) {
      const auto& [us, c] = tried[i];
      if (i > 2 && !(c == chosen)) continue;
      std::printf("%-8s m %4d  %7.2f us  %5.0f TFLOP/s  %5.0f GB/s  %s%s\n", r.name, int(m), us,
                  2 * double(m) * double(r.n) * double(r.k) / us / 1e6, double(layout_of(r).bytes()) / us / 1e3,
                  c.text().c_str(), c == chosen ? " (chosen)" : "");
    }
    std::fflush(stdout);
  }
}

// Some ways of one row, to see what a change of the kernel does.
void few(Bench& bench, int64_t m) {
  const Int4StreamConfig ways[][4] = {
      {{8, 3, 1, 16, 1, 2, 1}, {8, 3, 1, 8, 1, 4, 2}, {8, 3, 1, 8, 1, 2, 2}, {8, 3, 1, 8, 1, 4, 1}},
      {{8, 2, 1, 16, 1, 2, 1}, {8, 2, 1, 8, 1, 4, 1}, {8, 2, 1, 8, 1, 2, 2}, {8, 4, 1, 8, 2, 2, 1}},
      {{8, 2, 7, 2, 1, 4, 1}, {8, 4, 4, 4, 1, 2, 1}, {8, 4, 4, 2, 1, 2, 2}, {8, 2, 7, 1, 1, 4, 2}},
      {{8, 2, 1, 16, 1, 2, 2}, {8, 2, 1, 8, 1, 4, 2}, {8, 2, 1, 8, 1, 2, 4}, {8, 4, 1, 8, 2, 2, 2}},
  };
  for (size_t i = 0; i < 4; ++i)
    for (const Int4StreamConfig& c : ways[i])
      if (int4_shared_bytes(c, shape_of(m, kRows[i]), context().multiprocessors) <= 227 * 1024)
        print_line(kRows[i], m, bench.shape_us(m, kRows[i], c), c);
}

void run(int argc, char** argv) {
  Bench bench;
  std::vector<int64_t> rows = {1, 8, 16};
  if (argc > 2) {
    rows.clear();
    for (int i = 2; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  }
  const char* what = argc > 1 ? argv[1] : "table";
  for (const int64_t m : rows) {
    if (!std::strcmp(what, "tune"))
      tune(bench, m);
    else if (!std::strcmp(what, "chain"))
      chain(bench, m);
    else if (!std::strcmp(what, "few"))
      few(bench, m);
    else if (!std::strcmp(what, "gemm"))
      gemm(bench, m);
    else
      table(bench, m);
  }
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) { sluice::cuda::run(argc, argv); }
