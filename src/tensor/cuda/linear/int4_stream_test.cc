#include "tensor/cuda/linear/int4_stream.h"

#include <fmt/format.h>

#include "tensor/cuda/linear/int4_testing.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT: the test's own vocabulary
using Zeros = Int4Matrix::Zeros;

using Case = Int4Case;

Int4Shape shape_of(const Case& c) { return {c.m, c.n, c.k, int4_group(c.group, c.k)}; }

void check(const Case& c, const Int4StreamConfig& config) {
  SCOPED_TRACE(text(c) + "; " + config.text());
  ASSERT_TRUE(int4_stream_supports(config, int4_group(c.group, c.k)));
  int4_stream_prepare();
  expect_int4_product(c, int4_tolerance(c),
                      [&](const LinearArgs& a, const void* weights, const Int4Layout& layout) {
                        int4_stream(context(), a, weights, layout, config);
                      });
}

// As it is chosen; where x does not fit, another kernel is.
void check(const Case& c) {
  const Int4StreamConfig config = choose_int4_stream(shape_of(c), context().multiprocessors);
  if (config.stages > 0) check(c, config);
}

// Every kernel that was compiled, with columns shared out among warps and blocks, full tiles and not.
TEST(Int4Stream, EveryKernel) {
  for (const int rows : {8, 16})
    for (const int panels : {2, 3, 4})
      for (int warp_rows : {1, 2, 7})
        for (int cluster : {1, 2, 4}) {
          Int4StreamConfig config{.rows = rows,
                                  .panels = panels,
                                  .warp_rows = warp_rows,
                                  .slices = int4_most_warps(rows, panels) / warp_rows,
                                  .cluster = cluster,
                                  .stage_blocks = 1 + panels % 2};
          if (config.tile_panels() % cluster || (rows == 16 && panels == 4)) continue;
          const Case c{rows - 1, 600, 1152, 128, Zeros::integer, cluster == 1, cluster != 2, 8};
          config = with_stages(config, shape_of(c), context().multiprocessors, 227 * 1024);
          check(c, config);
        }
}
TEST(Int4Stream, EveryGroupAndZeros) {
  for (const int group : {32, 64, 128, 256})
    for (const Zeros zeros : {Zeros::integer, Zeros::real, Zeros::none})
      for (const int64_t m : {1, 7, 16}) {
        check({m, 576, 1536, group, zeros, false, true});
        check({m, 200, 768, group, zeros, true, false});
      }
}
TEST(Int4Stream, EveryNumberOfRows) {
  for (int64_t m = 1; m <= 16; ++m) check({m, 192, 640, 64, Zeros::integer, m % 2 == 0, true, 64});
}
TEST(Int4Stream, SmallModelsShapes) {
  for (const int64_t m : {1, 8, 16}) {
    check({m, 960, 576, 64});  // SmolLM2
    check({m, 576, 1536, 32, Zeros::real});
    check({m, 2048, 640, 128});  // Gemma 3 270M
    check({m, 640, 2048, 128, Zeros::integer, true, true});
    check({m, 1, 64, 64}), check({m, 17, 64, 32}), check({m, 8, 128, 128});
  }
}
TEST(Int4Stream, LargeModelsShapes) {
  for (const int64_t m : {1, 7, 16}) {
    check({m, 6144, 4096}), check({m, 4096, 4096}), check({m, 4096, 14336});
    check({m, 28672, 1024});
  }
}
// A group whose integers all count for nothing, and scales next to nothing.
TEST(Int4Pack, ConstantAndTinyGroups) {
  const Int4Layout layout{1, 64, 32};
  DecodedRow row;
  row.q.assign(64, 5);
  row.scale = {0, 3e-7f}, row.min = {-0.25f, -8 * 3e-7f};
  std::vector<std::byte> panel(layout.bytes());
  ASSERT_TRUE(pack_int4_row(layout, row, 32, 0, panel.data()));
  const auto* pairs = reinterpret_cast<const uint16_t*>(panel.data() + layout.scales_offset());
  EXPECT_EQ(f16_to_f32(pairs[0]) / kInt4ScaleUp * (0 - f16_to_f32(pairs[1])), -0.25f);
  EXPECT_NEAR(f16_to_f32(pairs[32]) / kInt4ScaleUp, 3e-7f, 3e-10f);
  EXPECT_EQ(f16_to_f32(pairs[33]), 8);
  EXPECT_EQ(panel[0], std::byte{0});
  for (const float bad : {256.f, INFINITY, NAN}) {
    row.scale[0] = bad;
    EXPECT_FALSE(pack_int4_row(layout, row, 32, 0, panel.data())) << bad;
  }
}

TEST(Int4Choice, IsMadeOfCompiledKernels) {
  for (const int64_t m : {1, 8, 9, 16})
    for (const int64_t n : {1, 72, 576, 4096, 6144, 28672, 128256})
      for (const int64_t k : {64, 576, 640, 4096, 14336})
        for (const int group : {32, 64, 128}) {
          if (k % std::max(64, group)) continue;
          const Int4Shape shape{m, n, k, group};
          const Int4StreamConfig c = choose_int4_stream(shape, 132);
          if (c.stages == 0) continue;
          EXPECT_TRUE(int4_stream_supports(c, group)) << c.text();
          EXPECT_LE(int4_shared_bytes(c, shape, 132), 227 * 1024) << c.text();
        }
}

}  // namespace
}  // namespace sluice::cuda
