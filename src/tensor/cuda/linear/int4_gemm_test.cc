#include "tensor/cuda/linear/int4_gemm.h"

#include "tensor/cuda/linear/int4_testing.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT: the test's own vocabulary
using Zeros = Int4Matrix::Zeros;
using Case = Int4Case;

void check(const Case& c, const Int4GemmConfig& config) {
  SCOPED_TRACE(text(c) + "; " + config.text());
  ASSERT_TRUE(int4_gemm_supports(config, int4_group(c.group, c.k)));
  int4_gemm_prepare();
  expect_int4_product(c, int4_tolerance(c),
                      [&](const LinearArgs& a, const void* weights, const Int4Layout& layout) {
                        int4_gemm(context(), a, weights, layout, config);
                      });
}

void check(const Case& c) {
  check(c, choose_int4_gemm({c.m, c.n, c.k, int4_group(c.group, c.k)}, c.zeros != Zeros::real,
                            context().multiprocessors));
}

// Every kernel that was compiled, with columns shared out among blocks, full tiles and not.
TEST(Int4Gemm, EveryKernel) {
  int kernels = 0;
  for (const int columns : {16, 32, 64, 96, 128, 160})
    for (const int group : {32, 64, 128})
      for (const int cluster : {1, 2, 4}) {
        const Int4GemmConfig config{columns, cluster};
        if (!int4_gemm_supports(config, group)) continue;
        ++kernels;
        check({columns - 3, 600, 1152, group, Zeros::integer, cluster == 1, cluster != 2, 8}, config);
        check({columns + 9, 203, 384, group, Zeros::integer, cluster == 2, false, 0}, config);
      }
  EXPECT_GE(kernels, 28);
}
TEST(Int4Gemm, EveryGroup) {
  for (const int group : {32, 64, 128, 256})
    for (const Zeros zeros : {Zeros::integer, Zeros::none})
      for (const int64_t m : {33, 128, 300}) check({m, 576, 768, group, zeros, m == 33, group == 64});
}
// Weights rounded to bf16, before their scale.
TEST(Int4Gemm, ZerosThatAreNoIntegers) {
  for (const int64_t m : {20, 33, 128, 300}) check({m, 576, 1536, 32, Zeros::real, m == 33});
  for (const int columns : {32, 128})
    for (const int cluster : {1, 2, 4})
      check({columns + 1, 200, 576, 32, Zeros::real}, {columns, cluster, true});
}
TEST(Int4Gemm, SmallModelsShapes) {
  for (const int64_t m : {1, 33, 128, 640}) {
    check({m, 960, 576, 64});  // SmolLM2
    check({m, 576, 1536, 32});
    check({m, 2048, 640, 128});  // Gemma 3 270M
    check({m, 640, 2048, 128, Zeros::integer, true, true});
    check({m, 1, 64, 64}), check({m, 17, 64, 32}), check({m, 8, 128, 128});
  }
}
TEST(Int4Gemm, LargeModelsShapes) {
  for (const int64_t m : {33, 128, 640, 2048}) check({m, 6144, 4096});
  for (const int64_t m : {64, 128}) check({m, 4096, 14336}), check({m, 4096, 4096});
  check({640, 28672, 1024});
}

TEST(Int4Choice, ManyRowsHaveCompiledKernels) {
  for (const int64_t m : {1, 33, 64, 128, 640, 2048, 8192})
    for (const int64_t n : {1, 576, 4096, 28672, 128256})
      for (const int64_t k : {128, 640, 4096, 14336})
        for (const int group : {32, 64, 128}) {
          const Int4GemmConfig c = choose_int4_gemm({m, n, k, group}, true, 132);
          EXPECT_TRUE(int4_gemm_supports(c, group)) << c.text();
          EXPECT_TRUE(int4_gemm_supports(choose_int4_gemm({m, n, k, 32}, false, 132), 32));
        }
}

}  // namespace
}  // namespace sluice::cuda
