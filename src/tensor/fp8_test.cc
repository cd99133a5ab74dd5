#include "tensor/fp8.h"

#include <gtest/gtest.h>

#include <limits>

namespace sluice {
namespace {

TEST(Fp8, EveryByteComesBackAsItself) {
  for (int b = 0; b < 256; ++b) {
    const float value = e4m3_to_f32(uint8_t(b));
    if (e4m3_is_nan(uint8_t(b)))
      EXPECT_TRUE(std::isnan(value) && e4m3_is_nan(f32_to_e4m3(value))) << b;
    else
      EXPECT_EQ(f32_to_e4m3(value), b) << value;
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), kMaxE4m3);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int b = 0; b < 0x7e; ++b) {  // neighbours among the positive numbers
    const float low = e4m3_to_f32(uint8_t(b)), high = e4m3_to_f32(uint8_t(b + 1)), middle = (low + high) / 2;
    EXPECT_EQ(f32_to_e4m3(middle), b % 2 ? b + 1 : b);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, low)), b);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, high)), b + 1);
    EXPECT_EQ(f32_to_e4m3(-std::nextafter(middle, high)), 0x80 | (b + 1));
  }
}

TEST(Fp8, WhatIsTooLargeIsTheLargest) {
  for (const float large : {449.f, 464.f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(f32_to_e4m3(large), 0x7e);
    EXPECT_EQ(f32_to_e4m3(-large), 0xfe);
  }
  EXPECT_TRUE(e4m3_is_nan(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace sluice
