// Decode attention in a graph of many calls, as a step runs it, over pools larger than the L2: µs per layer,
// the bytes of keys and values, GB/s, and the share of the card's 4.56 TB/s.
#include <cstdio>
#include <string_view>

#include "tensor/cuda/attention/decode.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/testing/device.h"

namespace sluice::cuda {
namespace {

using test::DeviceBytes;

constexpr double kCeiling = 4.56e12;  // bytes a second, measured (shared/reference/h200.md)
constexpr int kBlock = 16;

struct Shape {
  const char* name;
  int heads, kv_heads, head_dim, window;
  std::vector<int> lengths;
};

void measure(const Shape& s, ReadAhead ahead) {
  const int n = int(s.lengths.size());
  double tokens = 0;
  int stride = 0, blocks = 0;
  for (int length : s.lengths) {
    const int of_sequence = (length + kBlock - 1) / kBlock;
    tokens += s.window ? std::min(length, s.window) : length;
    blocks += of_sequence;
    stride = std::max(stride, of_sequence);
  }
  const double bytes = tokens * s.kv_heads * s.head_dim * 4;
  // Layers of one pool, until a round is beyond the L2.
  const double of_layer = double(blocks) * kBlock * s.kv_heads * s.head_dim * 4;
  const int layers = int(std::clamp(300e6 / std::max(bytes, 1.0), 2.0, std::max(2.0, 20e9 / of_layer)));
  const KvGeometry g{kBlock, std::min(layers, 200), s.kv_heads, s.head_dim, DType::bf16};
  const KvRows rows(g);
  DeviceBytes pool(size_t(blocks) * rows.block_bytes());
  static const DeviceBytes values = test::upload_bf16(test::random_bf16(1 << 20, 2));
  for (size_t at = 0; at < pool.bytes(); at += values.bytes())
    CUDA_CHECK(cudaMemcpy(pool.as<std::byte>() + at, values.data(), std::min(values.bytes(), pool.bytes() - at),
                          cudaMemcpyDeviceToDevice));
  std::vector<int32_t> ids(static_cast<size_t>(blocks)), table(size_t(n * stride), -1), starts;
  for (int i = 0; i < blocks; ++i) ids[size_t(i)] = i;
  std::mt19937 rng(1);
  std::shuffle(ids.begin(), ids.end(), rng);
  for (int i = 0; i <= n; ++i) starts.push_back(i);
  for (int i = 0; i < n; ++i)
    for (int b = 0; b < (s.lengths[size_t(i)] + kBlock - 1) / kBlock; ++b)
      table[size_t(i * stride + b)] = ids.back(), ids.pop_back();
  const DeviceBytes d_table = test::upload(table), d_starts = test::upload(starts),
                    d_lengths = test::upload(s.lengths);
  BatchInput batch;
  batch.tokens = batch.sequences = batch.one_row_sequences = n;
  batch.row_starts = d_starts.as<int32_t>();
  batch.kv_lengths = d_lengths.as<int32_t>();
  batch.table_stride = stride;
  batch.tables[0] = d_table.as<int32_t>();

  const int ctas = decode_prepare(test::context(), g, s.heads);
  const DeviceBytes entries(sizeof(DecodeEntry) * (kMaxSequences + 1)),
      shares(sizeof(DecodeShare) * size_t(ctas)), pieces(decode_scratch_bytes(g, s.heads, ctas));
  const DecodePlan plan{entries.as<DecodeEntry>(), shares.as<DecodeShare>(), ctas, s.window};
  const int64_t columns = int64_t(s.heads) * s.head_dim;
  const DeviceBytes q = test::upload_bf16(test::random_bf16(size_t(n * columns), 1)),
                    out(size_t(n * columns) * 2);
  make_plans(test::context(), batch, {.kv_heads = s.kv_heads}, std::span(&plan, 1), {});
  const float us =
      1000 * test::graph_ms(std::max(g.layers_per_group, 8), 9, [&](int i) {
        const AttentionArgs args{test::bf16_tensor(q.data(), n, columns),
                                 batch,
                                 g,
                                 {pool.as<std::byte>(), rows.block_bytes(), i % g.layers_per_group, 0},
                                 s.heads,
                                 0.1f,
                                 s.window,
                                 0,
                                 test::bf16_tensor(out.data(), n, columns)};
        decode(test::context(), args, plan, pieces.as<PieceColumn>(), i > 0 ? ahead : ReadAhead::nothing);
      });
  std::printf(
      "%-28s %2d/%d x %3d  %8.2f us  %8.2f MB  floor %7.2f us  %6.0f GB/s  %3.0f %%  (%d CTAs, %d layers)\n",
      s.name, s.heads, s.kv_heads, s.head_dim, us, bytes / 1e6, bytes / kCeiling * 1e6, bytes / us / 1e3,
      bytes / us * 1e6 / kCeiling * 100, ctas, g.layers_per_group);
  std::fflush(stdout);
}

std::vector<int> mixture() {
  std::vector<int> lengths(128, 500);
  lengths[50] = 32768;
  return lengths;
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  using namespace sluice::cuda;
  // "plan" or "cache": what is read ahead (decode.h); nothing by default
  const std::string_view wish = argc > 1 ? argv[1] : "";
  const ReadAhead ahead = wish == "plan"    ? ReadAhead::plan
                          : wish == "cache" ? ReadAhead::cache
                                            : ReadAhead::nothing;
  const auto n_of = [](int n, int length) { return std::vector<int>(size_t(n), length); };
  const auto at = [&](const char* name, int heads, int kv_heads, int head_dim, int window,
                      std::vector<int> lengths) {
    measure({name, heads, kv_heads, head_dim, window, std::move(lengths)}, ahead);
  };
  at("1 x 16", 32, 8, 128, 0, {16});
  at("1 x 512", 32, 8, 128, 0, {512});
  at("1 x 4096", 32, 8, 128, 0, {4096});
  at("1 x 16384", 32, 8, 128, 0, {16384});
  at("1 x 32768", 32, 8, 128, 0, {32768});
  at("8 x 576", 32, 8, 128, 0, n_of(8, 576));
  at("32 x 576", 32, 8, 128, 0, n_of(32, 576));
  at("128 x 576", 32, 8, 128, 0, n_of(128, 576));
  at("256 x 576", 32, 8, 128, 0, n_of(256, 576));
  at("32 x 8192", 32, 8, 128, 0, n_of(32, 8192));
  at("32768 and 127 x 500", 32, 8, 128, 0, mixture());
  at("1 x 4096", 64, 8, 128, 0, {4096});
  at("128 x 576", 64, 8, 128, 0, n_of(128, 576));
  at("1 x 512", 9, 3, 64, 0, {512});
  at("128 x 576", 9, 3, 64, 0, n_of(128, 576));
  at("128 x 576", 32, 8, 64, 0, n_of(128, 576));
  at("1 x 4096, window 512", 4, 1, 256, 512, {4096});
  at("128 x 2000, window 512", 4, 1, 256, 512, n_of(128, 2000));
  at("128 x 2000", 4, 1, 256, 0, n_of(128, 2000));
  // The plan's own kernel.
  const DeviceBytes lengths = test::upload(n_of(128, 576)), entries(sizeof(DecodeEntry) * (kMaxSequences + 1)),
                    shares(sizeof(DecodeShare) * 264);
  std::vector<int32_t> starts;
  for (int i = 0; i <= 128; ++i) starts.push_back(i);
  const DeviceBytes d_starts = test::upload(starts);
  sluice::BatchInput batch;
  batch.sequences = batch.one_row_sequences = batch.tokens = 128;
  batch.row_starts = d_starts.as<int32_t>();
  batch.kv_lengths = lengths.as<int32_t>();
  const DecodePlan plan{entries.as<DecodeEntry>(), shares.as<DecodeShare>(), 264, 0};
  std::printf("plan of 128 sequences: %.2f us\n", 1000 * test::graph_ms(50, 9, [&](int) {
                                                    make_plans(test::context(), batch, {.kv_heads = 8},
                                                               std::span(&plan, 1), {});
                                                  }));
}
