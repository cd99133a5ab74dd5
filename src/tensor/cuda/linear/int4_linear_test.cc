#include "tensor/cuda/linear/int4_linear.h"

#include "tensor/cuda/linear/int4_choice.h"
#include "tensor/cuda/linear/int4_rows.h"
#include "tensor/cuda/linear/int4_testing.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda {
namespace {

using namespace test;  // NOLINT: the test's own vocabulary
using Zeros = Int4Matrix::Zeros;

MemoryBackend& memory() {
  static MemoryBackend backend;
  return backend;
}
CublasLt& cublas() {
  static const auto made = [] {
    auto c = CublasLt::make(context(), memory());
    if (!c) ADD_FAILURE() << c.error().message;
    return std::move(c).value();
  }();
  return *made;
}

Weight weight_at(const void* data, const Int4Layout& layout) {
  Weight w{layout.rows, layout.cols, {}};
  Buffer bytes = memory().alloc(layout.bytes());
  CUDA_CHECK(cudaMemcpy(bytes.data(), data, layout.bytes(), cudaMemcpyDeviceToDevice));
  w.parts.push_back({0, layout.rows, {WeightElement::int4, layout.group, true}, std::move(bytes)});
  return w;
}

void check(const Int4Case& c, bool copied = false) {
  SCOPED_TRACE(text(c) + (copied ? ", copied" : ""));
  Int4Linear linear(context(), cublas());
  std::vector<Weight> weights;
  expect_int4_product(c, 2.5e-3, [&](const LinearArgs& a, const void* data, const Int4Layout& layout) {
    if (weights.empty()) {
      weights.push_back(weight_at(data, layout));
      linear.prepare(weights[0].parts[0], layout.cols, memory());
      const size_t bytes = size_t(layout.rows * layout.cols * 2);
      if (copied) ASSERT_EQ(linear.copy(memory(), bytes).size(), 1u);
      ASSERT_TRUE(linear.reserve(memory()).ok());
    }
    linear.run(a, weights[0].parts[0]);
  });
}

// Whichever way is chosen for the rows and the zeros.
TEST(Int4Linear, EveryWay) {
  for (const int64_t m : {1, 7, 16, 33, 128, 640, 2400})
    for (const int group : {32, 64, 128})
      for (const Zeros zeros : {Zeros::integer, Zeros::real})
        check({m, 960, 768, group, zeros, m % 2 == 0, m == 33, group == 64 ? 8 : 0});
}
TEST(Int4Linear, Copied) {
  for (const int64_t m : {16, 128, 129, 640, 2400})
    for (const Zeros zeros : {Zeros::integer, Zeros::real})
      check({m, 960, 768, 128, zeros, m % 2 == 0, m == 129}, true);
}
// All or none.
TEST(Int4Linear, CopiesWantRoom) {
  const Int4Matrix w(64, 256, 64, Zeros::integer, 1);
  const DeviceBytes packed = upload(w.packed);
  const Weight a = weight_at(packed.data(), w.layout), b = weight_at(packed.data(), w.layout);
  for (const size_t spare : {size_t(0), size_t(2 * 64 * 256 * 2 - 1), size_t(2 * 64 * 256 * 2)}) {
    Int4Linear linear(context(), cublas());
    for (const Weight* each : {&a, &b}) linear.prepare(each->parts[0], w.layout.cols, memory());
    EXPECT_EQ(linear.copy(memory(), spare).size(), spare < 2 * 64 * 256 * 2 ? 0u : 2u) << spare;
  }
}
TEST(Int4Linear, ModelsShapes) {
  for (const int64_t m : {1, 16, 33, 2048}) {
    check({m, 576, 1536, 32, Zeros::real});
    check({m, 1536, 576, 64});
    check({m, 640, 2048, 128});
  }
  check({2500, 4096, 14336, 128});  // as bf16 in two pieces
  check({40, 49152, 576, 32, Zeros::real, false, true});
}

// Each value as the host has it, rounded to nearest even; rows from the middle too.
TEST(Int4Rows, Expanded) {
  for (const int group : {32, 64, 128})
    for (const Zeros zeros : {Zeros::integer, Zeros::none}) {
      const Int4Matrix w(173, 384, group, zeros, uint32_t(group));
      const DeviceBytes packed = upload(w.packed), out(173 * 384 * 2);
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 173}, {32, 100}, {160, 13}}) {
        int4_expand(context(), packed.data(), w.layout, first, rows, out.data());
        const auto got = download<uint16_t>(out.data(), size_t(rows * 384));
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i)
          wrong += got[i] != f32_to_bf16(w.values[size_t(first * 384) + i]);
        EXPECT_EQ(wrong, 0) << group << ", " << first;
      }
    }
}

TEST(Int4Rows, Embedded) {
  const Int4Matrix w(100, 576, 32, Zeros::real, 1);
  const DeviceBytes packed = upload(w.packed);
  const Weight table = weight_at(packed.data(), w.layout);
  const std::vector<int32_t> ids = {0, 99, 7, 8, -1, 15, 16, 64}, last = {42};
  const DeviceBytes device_ids = upload(ids), device_last = upload(last);
  const auto tokens = int64_t(ids.size());
  BatchInput batch;
  batch.tokens = int(tokens), batch.token_ids = device_ids.as<int32_t>(),
  batch.last_ids = device_last.as<int32_t>();
  const DeviceBytes out(size_t(tokens) * 576 * 4);
  int4_embed(context(), {table, batch, 3, Tensor{out.data(), DType::f32, tokens, 576, 576}});
  const auto got = download<float>(out.data(), size_t(tokens) * 576);
  for (size_t t = 0; t < ids.size(); ++t)
    for (size_t c = 0; c < 576; ++c) {
      const float want = 3 * w.values[size_t(ids[t] < 0 ? last[0] : ids[t]) * 576 + c];
      ASSERT_NEAR(got[t * 576 + c], want, 3e-3f * 0.1f) << t << ", " << c;
    }
}

TEST(Int4Rows, OddZerosAreFound) {
  for (const Zeros zeros : {Zeros::integer, Zeros::real, Zeros::none}) {
    const Int4Matrix w(40, 256, 64, zeros, 5);
    const DeviceBytes packed = upload(w.packed), found = upload(std::vector<int>{0});
    int4_find_odd_zeros(context(), packed.data(), w.layout, found.as<int>());
    EXPECT_EQ(download<int>(found.data(), 1)[0], zeros == Zeros::real);
  }
}

TEST(Int4Choice, WaysByRowsAndZeros) {
  const auto way = [](int64_t m, bool integer) {
    return choose_int4({m, 4096, 4096, 128}, integer, false, 132).way;
  };
  using Way = Int4Choice::Way;
  EXPECT_EQ(way(1, false), Way::stream);
  EXPECT_EQ(way(8, true), Way::stream);
  EXPECT_EQ(way(9, true), Way::gemm);
  EXPECT_EQ(way(16, false), Way::stream);
  EXPECT_EQ(way(33, true), Way::gemm);
  EXPECT_EQ(way(33, false), Way::cublaslt);
  EXPECT_EQ(choose_int4({33, 4096, 4096, 32}, false, false, 132).way, Way::gemm);
  EXPECT_EQ(way(8192, true), Way::cublaslt);
  EXPECT_EQ(choose_int4({128, 4096, 4096, 128}, true, true, 132).way, Way::gemm);
  EXPECT_EQ(choose_int4({129, 4096, 4096, 128}, true, true, 132).way, Way::cublaslt);
}

}  // namespace
}  // namespace sluice::cuda
