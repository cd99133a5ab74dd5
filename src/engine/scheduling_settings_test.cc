#include "engine/scheduling_settings.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(SchedulingSettings, DefaultsAreThePolicysOwn) {
  const Result<Policy> made = policy_with({}, {}, {}, 0);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->lane_weights, kDefaultLaneWeights);
  EXPECT_EQ(made->target_itl_ns, 0);
  EXPECT_EQ(made->batching, Batching{});
  EXPECT_EQ(describe_change({}, *made), "");
}

TEST(SchedulingSettings, NumbersOutOfRangeAreNamed) {
  const auto error = [](const SchedulingSettings& s) {
    const Result<Policy> made = policy_with({}, {}, s, 0);
    return made ? "no error" : made.error().field + " " + made.error().message;
  };
  EXPECT_EQ(error({.target_itl_ms = -1}), "scheduler.target_itl_ms must be from 0 to 60000, not -1");
  EXPECT_EQ(error({.interactive_weight = 0}),
            "scheduler.lanes.interactive.weight must be from 1 to 1000, not 0");
  EXPECT_EQ(error({.batch_weight = 1001}), "scheduler.lanes.batch.weight must be from 1 to 1000, not 1001");
}

TEST(SchedulingSettings, ABatchRunsAtTheSameTime) {
  BatchingSettings batching;
  batching.dynamic.enabled = true;
  batching.dynamic.max_batch_size = 20;
  const Result<Policy> made = policy_with({.max_running = 16}, batching, {}, 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().field, "inference.dynamic_batching.max_batch_size");
}

TEST(SchedulingSettings, WhatMeansNothingUnderAPolicyIsNamed) {
  BatchingSettings set;
  set.window.max_batch_size = 7;
  set.dynamic.batch_wait_timeout_ms = 3;
  const auto idle = [&](const char* policy) {
    set.policy = policy;
    return without_effect(*batching_of(set, 0), set, {.target_itl_ms = 5}, 9);
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(idle("windowed"), Keys{"inference.dynamic_batching.batch_wait_timeout_ms"});
  EXPECT_EQ(idle("continuous"),
            (Keys{"scheduler.window.max_batch_size", "inference.dynamic_batching.batch_wait_timeout_ms"}));
  EXPECT_EQ(idle("serial"),
            (Keys{"scheduler.target_itl_ms", "engine.mixed_prompt_tokens", "scheduler.window.max_batch_size",
                  "inference.dynamic_batching.batch_wait_timeout_ms"}));
  EXPECT_TRUE(without_effect({}, {}, {}, 0).empty());
}

TEST(SchedulingSettings, AChangeIsToldInWords) {
  const Policy from;
  BatchingSettings serial;
  serial.policy = "serial";
  const Policy to = *policy_with(from, serial, {.target_itl_ms = 25, .interactive_weight = 8}, 64);
  EXPECT_EQ(describe_change(from, to),
            "batching: continuous -> serial; target_itl_ms: automatic -> 25 ms; lanes: 16/4/1 -> 8/4/1; "
            "mixed_prompt_tokens: automatic -> 64");
}

}  // namespace
}  // namespace sluice
