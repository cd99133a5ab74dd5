// Every block format against golden values (testdata/make_blocks.py): bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "model/formats/ggml_type.h"
#include "model/formats/rows.h"
#include "tensor/half.h"

namespace sluice {
namespace {

std::vector<char> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Blocks : public testing::TestWithParam<const char*> {};

TEST_P(Blocks, EqualTheGoldenValues) {
  const GgmlType* type = find_ggml_type(GetParam());
  ASSERT_NE(type, nullptr);
  const std::vector<char> file =
      read_file(std::string(SLUICE_SOURCE_DIR "/src/model/testdata/") + GetParam() + ".bin");
  const size_t stored = 2 * type->row_bytes(512);
  ASSERT_EQ(file.size(), stored + 2 * 512 * 4);
  const auto rows = make_rows(*type, std::as_bytes(std::span(file.data(), stored)), 2, 512);
  EXPECT_EQ(rows->format(), type->canonical);
  DecodedRow scratch;
  for (int64_t r = 0; r < 2; r++) {
    std::vector<float> golden(512), got(512);
    std::memcpy(golden.data(), file.data() + stored + size_t(r) * 2048, 2048);
    decode_f32(*rows, r, scratch, got.data());
    for (size_t c = 0; c < 512; c++) ASSERT_EQ(got[c], golden[c]) << "row " << r << " column " << c;
    ASSERT_EQ(scratch.q.size(), 512u);
    ASSERT_EQ(scratch.scale.size(), 512u / size_t(rows->format().group));
    ASSERT_EQ(scratch.min.size(), scratch.scale.size());
    const bool int4 = rows->format().element == WeightElement::int4;
    for (int8_t q : scratch.q) ASSERT_TRUE(!int4 || (q >= 0 && q <= 15)) << int(q);
    if (!rows->format().has_min) {
      for (float m : scratch.min) ASSERT_EQ(m, 0.f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Blocks,
                         testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
                                         "Q6_K"),
                         [](const auto& info) { return info.param; });

TEST(FloatRows, AreCopiedAndConverted) {
  const float f32[] = {1.5f, -2.25f, 0.f, 1e-3f};
  uint16_t f16[4], bf16[4];
  for (int i = 0; i < 4; i++) f16[i] = f32_to_f16(f32[i]), bf16[i] = f32_to_bf16(f32[i]);
  DecodedRow scratch;
  float got[4];
  decode_f32(*make_rows(*find_ggml_type("F32"), std::as_bytes(std::span(f32)), 1, 4), 0, scratch, got);
  EXPECT_TRUE(std::equal(got, got + 4, f32));
  EXPECT_EQ(scratch.raw.size(), 16u);
  decode_f32(*make_rows(*find_ggml_type("F16"), std::as_bytes(std::span(f16)), 2, 2), 1, scratch, got);
  EXPECT_EQ(got[1], f16_to_f32(f32_to_f16(1e-3f)));
  EXPECT_EQ(scratch.raw.size(), 4u);
  decode_f32(*make_rows(*find_ggml_type("BF16"), std::as_bytes(std::span(bf16)), 1, 4), 0, scratch, got);
  EXPECT_EQ(got[1], -2.25f);
  decode_f32(*plus_one(make_rows(*find_ggml_type("BF16"), std::as_bytes(std::span(bf16)), 1, 4)), 0, scratch,
             got);
  EXPECT_EQ(got[0], 2.5f);
  EXPECT_EQ(got[1], -1.25f);
}

}  // namespace
}  // namespace sluice
