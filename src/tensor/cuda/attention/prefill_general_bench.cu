// prefill_general by itself: µs and TFLOP/s of causal attention (4 · D · heads · pairs of positions).
#include <cstdio>

#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/testing/paged.h"

namespace sluice::cuda {
void prefill_general_prepare(const KvGeometry& geometry);

namespace test {
namespace {

void bench(int sequences, int rows, int heads, int kv_heads, int head_dim, int window) {
  const PagedBatch batch(std::vector<Part>(size_t(sequences), Part{0, rows}), 16, 0, 1);
  const PagedCache cache({16, 1, kv_heads, head_dim, DType::bf16}, batch.blocks(), 0);
  fill_random(context(), cache.card.data(), cache.card.bytes() / 2, 1, 1);
  const int q_width = heads * head_dim;
  const size_t elements = size_t(batch.rows()) * size_t(q_width);
  const DeviceBytes q(elements * 2), out(elements * 2);
  fill_random(context(), q.data(), elements, 2, 1);
  std::vector<PrefillItem> items;
  for (int end = rows; end > 0; end -= 64)
    for (int s = 0; s < sequences; ++s) items.push_back({s, s * rows + std::max(0, end - 64), s * rows + end});
  const DeviceBytes d_items = upload(items), d_count = upload(std::vector<int32_t>{int32_t(items.size())});
  const BatchInput on_card = batch.on_card();
  prefill_general_prepare(cache.geometry);
  const float ms = median_ms(8, [&] {
    prefill_general(
        context(),
        {bf16_tensor(q.data(), batch.rows(), q_width), on_card, cache.geometry, cache.card_layer(), heads,
         1 / std::sqrt(float(head_dim)), window, 0, bf16_tensor(out.data(), batch.rows(), q_width)},
        {d_count.as<int32_t>(), d_items.as<PrefillItem>()});
  });
  double pairs = 0;
  for (int r = 0; r < rows; ++r) pairs += window > 0 ? std::min(window, r + 1) : r + 1;
  const double flop = 4.0 * head_dim * heads * pairs * sequences;
  std::printf("%2d x %-6d %2d/%d x %-4d window %-5d %9.1f us %6.0f TFLOP/s\n", sequences, rows, heads, kv_heads,
              head_dim, window, double(ms) * 1e3, flop / double(ms) / 1e9);
}

int run() {
  for (int head_dim : {16, 32, 64, 80, 96, 128, 256}) {
    bench(16, 512, 32, 8, head_dim, 0);
    bench(1, 4096, 32, 8, head_dim, 0);
  }
  bench(1, 16384, 32, 8, 128, 0);
  bench(1, 16384, 32, 8, 96, 1024);
  return 0;
}

}  // namespace
}  // namespace test
}  // namespace sluice::cuda

int main() { return sluice::cuda::test::run(); }
