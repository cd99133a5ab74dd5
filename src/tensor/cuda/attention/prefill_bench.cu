// Prefill attention at Llama-3.1-8B's shape: µs, TFLOP/s (of the products that the mask leaves, 4 D a pair of
// row and visible token) and the share of what a bf16 matrix product reaches on an H200 (785 TFLOP/s, h200.md).
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <tuple>

#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {

void prefill_wgmma_prepare(const KvGeometry& geometry);

namespace {

constexpr double kCeiling = 785;
constexpr int kLayers = 4;  // a step's layers, so that no cache is warm from the one before

struct Rows {
  int rows, before;
};

__global__ void fill(uint16_t* data, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 29;
    // A sum of four uniforms, deviation 1: what a real q, k or v looks like to the power supply.
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += float(x >> 16 * k & 0xffff) / 65536.f - 0.5f;
    data[i] = f32_to_bf16(sum * 1.732f);
  }
}

// The clock that the card ran at between two of these: power, not the datasheet, decides it.
__global__ void stamp(uint64_t* at) {  // ptx/ has no use for these
  asm volatile("mov.u64 %0, %%clock64;\nmov.u64 %1, %%globaltimer;" : "=l"(at[0]), "=l"(at[1]));
}

enum class Contexts : uint8_t { whole, in_pieces };  // what the plan may do

void bench(const char* name, int heads, int kv_heads, int head_dim, const std::vector<Rows>& sequences,
           int window = 0, float softcap = 0, Contexts contexts = Contexts::in_pieces) {
  const KvGeometry geometry{16, kLayers, kv_heads, head_dim, DType::bf16};
  std::vector<int32_t> positions, kv_lengths, table, row_starts{0};
  int tokens = 0, stride = 0, blocks = 0;
  double pairs = 0;
  for (auto [rows, before] : sequences) stride = std::max(stride, (rows + before + 15) / 16);
  for (const auto [rows, before] : sequences) {
    for (int t = 0; t < rows; ++t) {
      positions.push_back(before + t);
      pairs += window > 0 ? std::min(window, before + t + 1) : before + t + 1;
    }
    for (int b = 0; b < stride; ++b) table.push_back(b * 16 < rows + before ? blocks++ : -1);
    kv_lengths.push_back(rows + before);
    tokens += rows;
    row_starts.push_back(tokens);
  }
  std::vector<int32_t> order(size_t(blocks), 0);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  for (int32_t& b : table) b = b < 0 ? b : order[size_t(b)];

  const size_t pool_bytes = size_t(blocks) * KvRows(geometry).block_bytes();
  const int q_stride = (heads + 2 * kv_heads) * head_dim;
  const test::DeviceBytes pool(pool_bytes), q(size_t(tokens) * size_t(q_stride) * 2),
      out(size_t(tokens) * size_t(heads * head_dim) * 2);
  fill<<<1024, 256>>>(pool.as<uint16_t>(), pool_bytes / 2, 1);
  fill<<<1024, 256>>>(q.as<uint16_t>(), q.bytes() / 2, 2);
  CUDA_CHECK(cudaDeviceSynchronize());
  const auto d_positions = test::upload(positions), d_lengths = test::upload(kv_lengths),
             d_table = test::upload(table), d_starts = test::upload(row_starts);
  const int multiprocessors = test::context().multiprocessors, tile_rows = prefill_tile_rows(geometry);
  const test::DeviceBytes count(4),
      items(sizeof(PrefillItem) *
            most_prefill_items(tokens, int(sequences.size()), tile_rows, multiprocessors));
  const size_t slots = size_t(prefill_slots(multiprocessors));
  const test::DeviceBytes sums(slots * prefill_slot_bytes(geometry));
  const auto arrived = test::upload(std::vector<int32_t>(slots * PrefillPieces::kWarps));
  BatchInput batch;
  batch.tokens = tokens;
  batch.sequences = int(sequences.size());
  batch.positions = d_positions.as<int32_t>();
  batch.row_starts = d_starts.as<int32_t>();
  batch.kv_lengths = d_lengths.as<int32_t>();
  batch.table_stride = stride;
  batch.tables[0] = d_table.as<int32_t>();
  batch.groups = 1;
  prefill_wgmma_prepare(geometry);
  const PrefillPlan plan{count.as<int32_t>(), items.as<PrefillItem>(), window};
  make_plans(test::context(), batch,
             {.kv_heads = kv_heads,
              .heads = heads,
              .block_tokens = geometry.block_tokens,
              .tile_rows = tile_rows,
              .most_heads = contexts == Contexts::whole ? 1 : prefill_heads_per_tile(geometry, heads),
              .tile_tokens = contexts == Contexts::whole ? 0 : prefill_tile_tokens(geometry)},
             {}, std::span(&plan, 1));
  const CUtensorMap map = prefill_pool_map(pool.as<std::byte>(), pool_bytes, geometry);
  const test::DeviceBytes stamps(32);
  stamp<<<1, 1, 0, test::context().stream>>>(stamps.as<uint64_t>());
  const float ms = test::graph_ms(kLayers, 15, [&](int layer) {
    const KvLayer kv{pool.as<std::byte>(), KvRows(geometry).block_bytes(), layer % kLayers, 0};
    const AttentionArgs a{test::bf16_tensor(q.data(), tokens, int64_t(heads) * head_dim, q_stride),
                          batch,
                          geometry,
                          kv,
                          heads,
                          1 / std::sqrt(float(head_dim)),
                          window,
                          softcap,
                          test::bf16_tensor(out.data(), tokens, int64_t(heads) * head_dim)};
    prefill_wgmma(test::context(), a, plan, {sums.as<float4>(), arrived.as<int32_t>()}, map);
  });
  stamp<<<1, 1, 0, test::context().stream>>>(stamps.as<uint64_t>() + 2);
  const auto at = test::download<uint64_t>(stamps.data(), 4);
  const double ghz = double(at[2] - at[0]) / double(at[3] - at[1]);
  const double tflops = pairs * heads * head_dim * 4 / double(ms) / 1e9;
  std::printf("%-34s %9.1f us %7.1f TFLOP/s %5.1f %% at %.2f GHz\n", name, double(ms) * 1e3, tflops,
              100 * tflops / kCeiling, ghz);
}

}  // namespace
}  // namespace sluice::cuda

int main() {
  using namespace sluice::cuda;
  using Sequences = std::vector<Rows>;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bench("16 x 512", 32, 8, 128, Sequences(16, {512, 0}));
  bench("1 x 4096", 32, 8, 128, {{4096, 0}});
  bench("1 x 16384", 32, 8, 128, {{16384, 0}});
  bench("1 x 32768", 32, 8, 128, {{32768, 0}});
  bench("2048 rows after 14336", 32, 8, 128, {{2048, 14336}});
  bench("4 x 512", 32, 8, 128, Sequences(4, {512, 0}));
  bench("4 x 500 after 77, 28 x 5 after 900", 32, 8, 128, [] {
    Sequences s(28, {5, 900});
    s.insert(s.end(), 4, {500, 77});
    return s;
  }());
  bench("1 x 512", 32, 8, 128, {{512, 0}});
  for (const auto& [name, whole, rows] : {std::tuple{"32 rows after 27000", "  not cut", Rows{32, 27000}},
                                          {"107 rows after 27000", "  not cut", {107, 27000}},
                                          {"107 rows after 4000", "  not cut", {107, 4000}},
                                          {"320 rows after 16000", "  not cut", {320, 16000}},
                                          {"640 rows after 8000", "  not cut", {640, 8000}}}) {
    bench(name, 32, 8, 128, {rows});
    bench(whole, 32, 8, 128, {rows}, 0, 0, Contexts::whole);
  }
  bench("1 x 16384, window 4096", 32, 8, 128, {{16384, 0}}, 4096);
  bench("1 x 16384, cap 50", 32, 8, 128, {{16384, 0}}, 0, 50);
  bench("1 x 16384, 64 wide", 32, 8, 64, {{16384, 0}});
  bench("1 x 16384, 256 wide", 16, 8, 256, {{16384, 0}});
  return 0;
}
