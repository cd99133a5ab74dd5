// prefill_general against ref/ in float32: awkward head widths and groups, windows, soft caps, ragged rows
// after cached contexts, a cache whose unused slots are NaN.
#include "tensor/cuda/attention/prefill.h"
#include "tensor/cuda/testing/paged.h"

namespace sluice::cuda {
void prefill_general_prepare(const KvGeometry& geometry);

namespace test {
namespace {

struct Case {
  int heads, kv_heads, head_dim;
  std::vector<Part> parts;
  int window = 0;
  float softcap = 0;
  int block_tokens = 16;
};

// Tiles of at most `rows`, in an order that nothing may rely on. Sequences with one row are not prefill's.
std::vector<PrefillItem> plan_of(const PagedBatch& batch, size_t sequences, int rows) {
  std::vector<PrefillItem> items;
  for (size_t s = 0; s < sequences; ++s) {
    const int begin = batch.starts()[s], end = batch.starts()[s + 1];
    if (end - begin == 1) continue;
    for (int r = begin; r < end; r += rows) items.push_back({int32_t(s), r, std::min(end, r + rows)});
  }
  std::shuffle(items.begin(), items.end(), std::mt19937(1));
  return items;
}

void fill_cache(PagedCache& cache, const PagedBatch& batch, const std::vector<Part>& parts, int window,
                uint32_t seed) {
  const KvGeometry& g = cache.geometry;
  for (size_t s = 0; s < parts.size(); ++s) {
    const int end = parts[s].context + parts[s].rows;
    const int first = window > 0 ? std::max(0, parts[s].context - window + 1) : 0;
    for (int t = first; t < end; ++t) {
      for (int head = 0; head < g.kv_heads; ++head) {
        for (bool value : {false, true}) {
          const auto v = random_bf16(size_t(g.head_dim), ++seed);
          std::copy(v.begin(), v.end(),
                    cache.judged_at(batch.block(int(s), t / g.block_tokens), value, head, t % g.block_tokens));
        }
      }
    }
  }
  cache.copy_to_card();
}

void check(const Case& c, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " x " << c.head_dim << ", window "
                                  << c.window << ", softcap " << c.softcap << ", blocks of " << c.block_tokens);
  std::vector<Part> parts = c.parts;
  if (c.window > 0)
    for (Part& p : parts) p.first_block = std::max(0, p.context - c.window + 1) / c.block_tokens;
  const PagedBatch batch(parts, c.block_tokens, 2, seed);
  PagedCache cache({c.block_tokens, 2, c.kv_heads, c.head_dim, DType::bf16}, batch.blocks(), 1);
  fill_cache(cache, batch, parts, c.window, seed);
  // q is a view into rows that are wider, as in the decoder; what is beside it is NaN.
  const int q_width = c.heads * c.head_dim, width = q_width + 2 * c.kv_heads * c.head_dim;
  std::vector<float> qkv = random_bf16(size_t(batch.rows()) * size_t(width), seed, 2);
  const DeviceBytes d_qkv = upload_bf16(qkv), d_out(size_t(batch.rows()) * size_t(q_width) * 2);
  std::vector<float> judged(size_t(batch.rows()) * size_t(q_width));
  const float scale = 1 / std::sqrt(float(c.head_dim));

  const BatchInput host = batch.judged(), card = batch.on_card();
  make_ref_backend()->attention({f32_tensor(qkv, batch.real_rows(), width).columns(0, q_width), host,
                                 cache.judged_geometry, cache.judged_layer(), c.heads, scale, c.window,
                                 c.softcap, f32_tensor(judged, batch.real_rows(), q_width)});
  const std::vector<PrefillItem> items = plan_of(batch, parts.size(), 64);
  const DeviceBytes d_items = upload(items), d_count = upload(std::vector<int32_t>{int32_t(items.size())});
  prefill_general_prepare(cache.geometry);
  prefill_general(context(),
                  {bf16_tensor(d_qkv.data(), batch.rows(), width).columns(0, q_width), card, cache.geometry,
                   cache.card_layer(), c.heads, scale, c.window, c.softcap,
                   bf16_tensor(d_out.data(), batch.rows(), q_width)},
                  {d_count.as<int32_t>(), d_items.as<PrefillItem>()});

  const auto raw = download<uint16_t>(d_out.data(), judged.size());
  std::vector<float> got, want;
  for (size_t s = 0; s + 1 < batch.starts().size(); ++s) {
    const bool ours = s < parts.size() && parts[s].rows > 1;
    for (size_t i = size_t(batch.starts()[s]) * size_t(q_width);
         i < size_t(batch.starts()[s + 1]) * size_t(q_width); ++i) {
      if (ours) {
        got.push_back(bf16_to_f32(raw[i])), want.push_back(judged[i]);
      } else {
        ASSERT_EQ(raw[i], 0xffff) << "rows that belong to decode or pad were written";
      }
    }
  }
  // bf16 weights and bf16 output: each rounds by 1.6e-3 of the norm on average.
  EXPECT_LT(relative_error(got, want), 4e-3);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.03) << "at " << i;
}

const std::vector<Part> kRagged = {{0, 33}, {5, 1}, {100, 70}, {0, 2}, {63, 130}, {250, 7}};

TEST(CudaPrefillGeneral, HeadWidthsAndGroups) {
  uint32_t seed = 1;
  for (int head_dim : {8, 16, 32, 64, 80, 96, 128, 256}) {
    for (auto [heads, kv_heads] : {std::pair{9, 3}, {8, 2}, {4, 1}})
      check({heads, kv_heads, head_dim, kRagged}, seed += 50);
  }
}

TEST(CudaPrefillGeneral, WindowsAndSoftCaps) {
  uint32_t seed = 5000;
  for (int head_dim : {8, 80, 128, 256}) {
    for (int window : {1, 7, 64, 100, 512}) check({4, 2, head_dim, kRagged, window}, seed += 50);
    check({4, 2, head_dim, kRagged, 0, 30}, seed += 50);
    check({4, 2, head_dim, kRagged, 40, 5}, seed += 50);
  }
}

TEST(CudaPrefillGeneral, BlockSizes) {
  uint32_t seed = 9000;
  for (int block_tokens : {8, 32, 64}) check({4, 2, 96, kRagged, 50, 0, block_tokens}, seed += 50);
}

TEST(CudaPrefillGeneral, LongContext) {
  check({2, 1, 80, {{4000, 65}, {0, 1100}}}, 9500);
  check({2, 1, 32, {{4000, 65}, {0, 1100}}, 300}, 9600);
}

TEST(CudaPrefillGeneral, NoWork) { check({2, 1, 32, {{40, 1}, {7, 1}}}, 9700); }

}  // namespace
}  // namespace test
}  // namespace sluice::cuda
