#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(Half, EveryHalfSurvivesTheWayThere) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(uint16_t(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    } else {
      ASSERT_EQ(f32_to_f16(f), h);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), f32_to_f16(1.0f));                // a tie: to even
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), f32_to_f16(1.0f + 0x1p-9f));  // a tie: to even, upwards
  EXPECT_EQ(f32_to_f16(1.0f + 0x1.1p-11f), f32_to_f16(1.0f + 0x1p-10f));
  EXPECT_EQ(f32_to_f16(65519), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);
  EXPECT_EQ(f32_to_f16(0x1.8p-25f), 1);
}

TEST(Half, Bfloat) {
  for (uint32_t b = 0; b < 0x10000; ++b) {
    const float f = bf16_to_f32(uint16_t(b));
    if (!std::isnan(f)) {
      ASSERT_EQ(f32_to_bf16(f), b);
    }
  }
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.00390625f)), 1.0f);  // a tie: to even
}

}  // namespace
}  // namespace sluice
