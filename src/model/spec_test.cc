#include "model/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

TEST(RopeSpec, PlainLinearAndPartial) {
  RopeSpec r;
  EXPECT_THAT(r.inverse_frequencies(4), testing::ElementsAre(testing::FloatEq(1), testing::FloatEq(0.01f)));
  r.scaling = RopeSpec::Scaling::linear;
  r.factor = 4;
  EXPECT_THAT(r.inverse_frequencies(4),
              testing::ElementsAre(testing::FloatEq(0.25f), testing::FloatEq(0.0025f)));
  r.rotary = 2;
  EXPECT_THAT(r.inverse_frequencies(4), testing::ElementsAre(testing::FloatEq(0.25f)));
}

// Values by transformers' _compute_llama3_parameters for Llama 3.1 (head of 128, base 500000, factor 8).
TEST(RopeSpec, Llama3) {
  RopeSpec r;
  r.base = 500000;
  r.scaling = RopeSpec::Scaling::llama3;
  r.factor = 8;
  const std::vector<float> f = r.inverse_frequencies(128);
  ASSERT_EQ(f.size(), 64u);
  EXPECT_FLOAT_EQ(f[0], 1.f);  // short wavelengths stay
  EXPECT_NEAR(f[20], 1.65604401e-2, 1e-8);
  EXPECT_NEAR(f[30], 1.3718936e-3, 1e-9);    // between the borders
  EXPECT_NEAR(f[63], 3.06892599e-7, 1e-13);  // long ones are divided by 8
}

ModelSpec with_windows(const std::vector<uint8_t>& windowed) {
  ModelSpec s;
  s.layers = int(windowed.size());
  s.window = 512;
  s.windowed = windowed;
  return s;
}

ModelSpec gemma(int layers) {
  std::vector<uint8_t> windowed;
  for (int i = 0; i < layers; i++) windowed.push_back((i + 1) % 6 != 0);
  return with_windows(windowed);
}

TEST(LayerGroups, OneKindIsOneGroup) {
  ModelSpec s;
  s.layers = 30;
  LayerGroups g = layer_groups(s);
  EXPECT_EQ(g.groups.size(), 1u);
  EXPECT_EQ(g.groups[0].window, 0);
  EXPECT_EQ(g.layers_per_group, 30);
  EXPECT_EQ(g.index_in[29], 29);
  s.window = 24;  // every layer
  g = layer_groups(s);
  EXPECT_EQ(g.groups.size(), 1u);
  EXPECT_EQ(g.groups[0].window, 24);
}

TEST(LayerGroups, Gemma270M) {
  const LayerGroups g = layer_groups(gemma(18));  // 3 global, 15 local
  EXPECT_EQ(g.layers_per_group, 3);
  ASSERT_EQ(g.groups.size(), 6u);
  EXPECT_EQ(g.groups[0].window, 0);
  EXPECT_EQ(g.groups[1].window, 512);
  EXPECT_EQ(g.group_of[5], 0);
  EXPECT_EQ(g.index_in[5], 0);
  EXPECT_EQ(g.group_of[0], 1);
  EXPECT_EQ(g.group_of[17], 0);
  EXPECT_EQ(g.index_in[17], 2);
}

// Whatever the pattern: places are unique and in range, kinds do not mix, and the bounds hold.
TEST(LayerGroups, BoundsHold) {
  for (int layers = 1; layers <= 80; layers++) {
    for (int pattern = 1; pattern <= 8; pattern++) {
      std::vector<uint8_t> windowed;
      for (int i = 0; i < layers; i++) windowed.push_back((i + 1) % pattern != 0);
      const ModelSpec s = with_windows(windowed);
      const LayerGroups g = layer_groups(s);
      ASSERT_LE(g.groups.size(), size_t(kMaxLayerGroups));
      std::set<std::pair<int, int>> places;
      for (int i = 0; i < layers; i++) {
        const int group = g.group_of[size_t(i)], index = g.index_in[size_t(i)];
        ASSERT_LT(size_t(group), g.groups.size());
        ASSERT_TRUE(index >= 0 && index < g.layers_per_group);
        ASSERT_TRUE(places.insert({group, index}).second);
        const int window = g.groups[size_t(group)].window;
        ASSERT_TRUE(window == 0 || (window == 512 && s.layer_windowed(i)));  // a layer loses nothing it needs
      }
      const double cache = double(g.groups.size()) * g.layers_per_group;
      ASSERT_LE(cache - layers, 0.15 * cache + 1e-9) << layers << " layers, every " << pattern;
    }
  }
}

}  // namespace
}  // namespace sluice
