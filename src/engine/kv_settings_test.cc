#include "engine/kv_settings.h"

#include <gtest/gtest.h>

#include "tensor/backend.h"

namespace sluice {
namespace {

TEST(KvSettings, PrecisionIsAPolicyOverBlocks) {
  const auto one = [](const char* precision) { return *tiering_of({.precision = precision}); };
  EXPECT_FALSE(one("bf16").on());
  EXPECT_EQ(one("int8").stages[0].tier, KvTier::int8);
  EXPECT_EQ(one("int8").stages[0].age_tokens, 0);
  EXPECT_EQ(one("fp8").smallest_units(), 2);
  EXPECT_EQ(one("int4").smallest_units(), 1);
  const KvTiering tiered =
      *tiering_of({.precision = "tiered", .tier_full_tokens = 100, .tier_int8_tokens = 300});
  ASSERT_EQ(tiered.count, 2);
  EXPECT_EQ(tiered.stages[0].tier, KvTier::int8);
  EXPECT_EQ(tiered.stages[0].age_tokens, 100);
  EXPECT_EQ(tiered.stages[1].tier, KvTier::int4);
  EXPECT_EQ(tiered.stages[1].age_tokens, 300);
}

TEST(KvSettings, ContradictionsAreNamed) {
  const auto ages = tiering_of({.precision = "tiered", .tier_full_tokens = 100, .tier_int8_tokens = 99});
  ASSERT_FALSE(ages);
  EXPECT_EQ(ages.error().field, "kv.tier_int8_tokens");
  const auto both = tiering_of({.precision = "int8", .allocation = "contiguous_max_context"});
  ASSERT_FALSE(both);
  EXPECT_EQ(both.error().field, "kv.allocation");
}

TEST(KvSettings, ADeviceHasSomeOfThem) {
  const auto cpu = make_cpu_backend({});
  ASSERT_TRUE(cpu);
  for (const char* good : {"bf16", "int8", "int4", "tiered"})
    EXPECT_TRUE(check_precision({.precision = good}, **cpu)) << good;
  const Status fp8 = check_precision({.precision = "fp8"}, **cpu);
  ASSERT_FALSE(fp8);
  EXPECT_EQ(fp8.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(fp8.error().field, "kv.precision");
  EXPECT_NE(fp8.error().message.find("it can: bf16, int8, int4, tiered"), std::string::npos);
  EXPECT_TRUE(check_precision({.precision = "fp8"}, *make_ref_backend()));
}

TEST(KvSettings, AForcedWindowLeavesSmallerOnes) {
  ModelSpec spec;
  spec.layers = 3;
  spec.window = 512;
  spec.windowed = {1, 0, 1};
  const ModelSpec wide = with_window(spec, 4096), narrow = with_window(spec, 128);
  EXPECT_EQ(wide.layer_window(0), 512);
  EXPECT_EQ(wide.layer_window(1), 4096);
  EXPECT_TRUE(wide.layer_windowed(0) && !wide.layer_windowed(1)) << "they rotate as before";
  EXPECT_EQ(narrow.layer_window(0), 128);
  EXPECT_EQ(narrow.layer_window(1), 128);
  EXPECT_EQ(with_window(spec, 0).layer_window(1), 0);
  ModelSpec plain;
  plain.layers = 2;
  EXPECT_EQ(layer_groups(with_window(plain, 64)).groups[0].window, 64);
}

}  // namespace
}  // namespace sluice
