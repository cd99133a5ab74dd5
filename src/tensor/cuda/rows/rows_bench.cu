// Row ops in a captured chain with overlapping launches, µs each. One row: the same small buffers again and
// again, as in a decode step. Many: buffers rotated beyond the L2, as share of what a device copy reaches (4.28
// TB/s).
#include <cstdio>

#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/testing/memory_backend.h"
#include "tensor/cuda/testing/paged.h"

namespace sluice::cuda::test {
namespace {

constexpr double kCopyBytesPerS = 4.28e12;

void report(const char* op, int rows, int columns, float ms, double bytes) {
  const double us = double(ms) * 1e3;
  std::printf("%-24s %6d x %-6d %8.2f us", op, rows, columns, us);
  if (bytes > 8e6)
    std::printf("  %6.0f GB/s  floor %7.2f us  %3.0f %%", bytes / us / 1e3, bytes / kCopyBytesPerS * 1e6,
                bytes / kCopyBytesPerS / us * 1e8);
  std::printf("\n");
}

DeviceBytes random_rows(size_t bytes) {
  DeviceBytes d(bytes);
  fill_random(context(), d.data(), bytes / 2, 3, 1);
  return d;
}

// So many copies of `bytes` that together they are far beyond the L2; one where they are tiny.
int copies(size_t bytes) { return bytes < (8u << 20) ? 1 : int(std::max<size_t>(2, (256u << 20) / bytes + 1)); }

void bench_norm(const char* name, int rows, int columns, bool post) {
  const size_t bytes = size_t(rows) * size_t(columns) * 2;
  const int n = copies(3 * bytes), calls = rows <= 128 ? 64 : 2 * n;
  const DeviceBytes x = random_rows(bytes * size_t(n)), residual(2 * bytes * size_t(n));
  CUDA_CHECK(cudaMemset(residual.data(), 0, residual.bytes()));
  const DeviceBytes weight = upload(std::vector<float>(size_t(columns), 0.5f));
  const float ms = graph_ms(calls, 20, [&](int i) {
    const Tensor added = bf16_tensor(x.as<std::byte>() + bytes * size_t(i % n), rows, columns);
    const Tensor sum{residual.as<std::byte>() + 2 * bytes * size_t(i % n), DType::f32, rows, columns, columns};
    add_rms_norm(context(),
                 {sum, added, post ? weight.as<float>() : nullptr, weight.as<float>(), 1e-5f, added});
  });
  report(name, rows, columns, ms, 6.0 * double(bytes));
}

void bench_act(int rows, int columns) {
  const size_t bytes = size_t(rows) * size_t(columns) * 2;
  const int n = copies(3 * bytes), calls = rows <= 128 ? 64 : 2 * n;
  const DeviceBytes in = random_rows(2 * bytes * size_t(n)), out(bytes * size_t(n));
  const float ms = graph_ms(calls, 20, [&](int i) {
    act_mul(context(),
            {bf16_tensor(in.as<std::byte>() + 2 * bytes * size_t(i % n), rows, 2 * columns), Activation::silu,
             bf16_tensor(out.as<std::byte>() + bytes * size_t(i % n), rows, columns)});
  });
  report("act_mul silu", rows, columns, ms, 3.0 * double(bytes));
}

void bench_rope(const char* name, const std::vector<Part>& parts, bool norms) {
  const PagedBatch batch(parts, 16, 0, 1);
  constexpr int kLayers = 8;
  const int heads = 32, kv_heads = 8, head_dim = 128, columns = (heads + 2 * kv_heads) * head_dim,
            rows = batch.rows();
  const KvGeometry geometry{16, kLayers, kv_heads, head_dim, DType::bf16};
  const size_t block_bytes = KvRows(geometry).block_bytes();
  const DeviceBytes pool(block_bytes * size_t(batch.blocks()));
  const size_t bytes = size_t(rows) * size_t(columns) * 2;
  const int n = copies(bytes), calls = rows <= 128 ? 64 : 2 * n;
  const DeviceBytes qkv = random_rows(bytes * size_t(n));
  std::vector<float> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i)
    inv_freq.push_back(std::pow(500000.0f, -float(2 * i) / float(head_dim)));
  const DeviceBytes freq = upload(inv_freq), weight = upload(std::vector<float>(size_t(head_dim), 0.5f));
  const BatchInput on_card = batch.on_card();
  const float* norm = norms ? weight.as<float>() : nullptr;
  const float ms = graph_ms(calls, 20, [&](int i) {
    rope_store_kv(context(), {bf16_tensor(qkv.as<std::byte>() + bytes * size_t(i % n), rows, columns),
                              on_card,
                              geometry,
                              {pool.as<std::byte>(), block_bytes, i % kLayers, 0},
                              heads,
                              norm,
                              norm,
                              1e-6f,
                              head_dim,
                              freq.as<float>(),
                              1});
  });
  report(name, rows, columns, ms, 2.0 * double(bytes));
}

void bench_moves(int rows, int columns) {
  const size_t bytes = size_t(rows) * size_t(columns) * 2;
  const int n = copies(2 * bytes), calls = rows <= 128 ? 64 : 2 * n;
  constexpr int kVocab = 128256;
  MemoryBackend memory;
  Weight weight;
  weight.rows = kVocab, weight.cols = columns;
  weight.parts.push_back(
      {0, kVocab, {WeightElement::bf16, 0, false}, memory.alloc(size_t(kVocab) * size_t(columns) * 2)});
  const Buffer& table = weight.parts[0].data;
  fill_random(context(), table.data(), table.bytes() / 2, 4, 1);
  const DeviceBytes out(2 * bytes * size_t(n));
  std::mt19937 rng(1);
  std::vector<int32_t> ids(size_t(rows) * size_t(calls)), order(static_cast<size_t>(rows));
  for (int32_t& id : ids) id = int32_t(rng() % kVocab);
  for (int i = 0; i < rows; ++i) order[size_t(i)] = rows - 1 - i;
  const DeviceBytes d_ids = upload(ids), d_order = upload(order);
  const auto at = [&](int i) {
    return bf16_tensor(out.as<std::byte>() + bytes * size_t(i % n), rows, columns);
  };
  report("embed", rows, columns,
         graph_ms(calls, 20,
                  [&](int i) {
                    BatchInput batch;
                    batch.tokens = rows, batch.token_ids = d_ids.as<int32_t>() + size_t(i) * size_t(rows);
                    embed(context(), {weight, batch, 1,
                                      Tensor{out.as<std::byte>() + 2 * bytes * size_t(i % n), DType::f32, rows,
                                             columns, columns}});
                  }),
         3.0 * double(bytes));
  report("gather_rows", rows, columns,
         graph_ms(calls, 20,
                  [&](int i) {
                    gather_rows(context(),
                                bf16_tensor(table.as<std::byte>() + bytes * size_t(i % n), rows, columns),
                                d_order.as<int32_t>(), at(i));
                  }),
         2.0 * double(bytes));
}

void bench_fill() {
  const size_t bytes = size_t(8) << 30;
  const DeviceBytes big(bytes);
  const float ms = median_ms(3, [&] { fill_random(context(), big.data(), bytes / 2, 5, 0.02f); });
  std::printf("fill_random               8 GiB %18.2f ms  %6.0f GB/s\n", double(ms),
              double(bytes) / double(ms) / 1e6);
  // What the card copies today: the ceiling that the shares are of was measured another day.
  const size_t half = bytes / 2;
  const float copy = median_ms(5, [&] {
    CUDA_CHECK(cudaMemcpyAsync(big.data(), big.as<std::byte>() + half, half, cudaMemcpyDeviceToDevice,
                               context().stream));
  });
  std::printf("device copy               8 GiB read + written %5.2f ms  %6.0f GB/s\n", double(copy),
              double(bytes) / double(copy) / 1e6);
}

int run() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  bench_fill();
  for (int rows : {1, 16, 128, 512, 2048, 8192}) bench_norm("add_rms_norm", rows, 4096, false);
  for (int rows : {1, 128, 2048, 8192}) bench_norm("add_rms_norm post", rows, 4096, true);
  for (int rows : {1, 128, 2048}) bench_norm("add_rms_norm", rows, 8192, false);
  for (int rows : {1, 16, 128, 2048, 8192}) bench_act(rows, 14336);
  std::vector<Part> many;
  for (int i = 0; i < 128; ++i) many.push_back({512 + i, 1});
  for (bool norms : {false, true}) {
    const char* name = norms ? "rope_store_kv norms" : "rope_store_kv";
    bench_rope(name, {{512, 1}}, norms);
    bench_rope(name, many, norms);
    bench_rope(name, {{0, 2048}}, norms);
    bench_rope(name, {{0, 8192}}, norms);
  }
  bench_rope("rope_store_kv far", {{120000, 1}}, false);
  for (int rows : {1, 128, 2048}) bench_moves(rows, 4096);
  return 0;
}

}  // namespace
}  // namespace sluice::cuda::test

int main() { return sluice::cuda::test::run(); }
