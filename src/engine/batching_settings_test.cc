#include "engine/batching_settings.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;

BatchingSettings settings(const char* policy, BatchingSettings::Dynamic dynamic = {},
                          BatchingSettings::Window window = {}) {
  return {policy, dynamic, window};
}

// "key: message" of what is refused.
std::string error(const BatchingSettings& s, int max_sequences = 0) {
  const Result<Batching> made = batching_of(s, max_sequences);
  if (made) return "no error";
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  return made.error().field + ": " + made.error().message;
}
bool names(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (message.find(word) == std::string::npos) return false;
  return true;
}

TEST(BatchingSettings, ContinuousUnlessSaidOtherwise) {
  EXPECT_EQ(*batching_of({}, 0), Batching{});
  EXPECT_EQ(*batching_of(settings("continuous"), 1), Batching{});
  EXPECT_EQ(batching_of(settings("serial"), 1)->kind, BatchingKind::serial);
}

TEST(BatchingSettings, TheSlidingWindowIsTheOneOfWindowed) {
  const Batching b = *batching_of(settings("windowed"), 0);
  EXPECT_EQ(b.kind, BatchingKind::windowed);
  EXPECT_EQ(b.window, (BatchWindow{128, 100 * kMs, 50 * kMs, 200 * kMs}));
  EXPECT_EQ(b.window, BatchWindow{}) << "the same defaults in both places";
}

TEST(BatchingSettings, DynamicBatchingSelectsWindowed) {
  for (const char* policy : {"", "windowed"}) {
    const Batching b = *batching_of(settings(policy, {.enabled = true}), 0);
    EXPECT_EQ(b.kind, BatchingKind::windowed);
    EXPECT_EQ(b.window, (BatchWindow{32, 15 * kMs, 0, 0}));
  }
  EXPECT_EQ(batching_of(settings("", {.max_batch_size = 5}), 0)->kind, BatchingKind::continuous)
      << "not enabled";
}

TEST(BatchingSettings, ContradictionsNameBothKeys) {
  for (const char* policy : {"continuous", "serial"})
    EXPECT_TRUE(names(error(settings(policy, {.enabled = true})),
                      {"scheduler.policy: ", policy, "inference.dynamic_batching.enabled"}));
  EXPECT_TRUE(names(error(settings("", {.enabled = true}, {.window_ms = 300})),
                    {"scheduler.window: ", "inference.dynamic_batching.enabled"}));
  EXPECT_TRUE(names(error(settings("windowed", {}, {.batch_timeout_ms = 201})),
                    {"scheduler.window.batch_timeout_ms: ", "scheduler.window.window_ms (200)"}));
  EXPECT_TRUE(names(error(settings("windowed", {}, {.min_trigger_interval_ms = 101})),
                    {"scheduler.window.min_trigger_interval_ms: ", "scheduler.window.batch_timeout_ms (100)"}));
  EXPECT_TRUE(names(error(settings("windowed", {}, {.max_batch_size = 65}), 64),
                    {"scheduler.window.max_batch_size: ", "engine.max_sequences (64), not 65"}));
  EXPECT_TRUE(names(error(settings("", {.enabled = true, .max_batch_size = 33}), 31),
                    {"inference.dynamic_batching.max_batch_size: ", "engine.max_sequences (31), not 33"}));
  EXPECT_TRUE(batching_of(settings("", {.enabled = true, .max_batch_size = 33}), 33));
}

TEST(BatchingSettings, ANumberThatNobodySetGivesWayToMaxSequences) {
  EXPECT_EQ(batching_of(settings("windowed"), 64)->window.max_batch, 64);
  EXPECT_EQ(batching_of(settings("", {.enabled = true}), 8)->window.max_batch, 8);
}

TEST(BatchingSettings, AbsurdNumbersAreRefusedWithTheRange) {
  EXPECT_EQ(error(settings("", {}, {.window_ms = 0})),
            "scheduler.window.window_ms: must be from 1 to 60000, not 0");
  EXPECT_EQ(error(settings("", {}, {.max_batch_size = 4097})),
            "scheduler.window.max_batch_size: must be from 1 to 4096, not 4097");
  EXPECT_EQ(error(settings("", {.batch_wait_timeout_ms = -1})),
            "inference.dynamic_batching.batch_wait_timeout_ms: must be from 0 to 60000, not -1");
  EXPECT_EQ(error(settings("random")),
            "scheduler.policy: must be continuous, windowed or serial, not 'random'");
}

TEST(BatchingSettings, AreSaidInOneLine) {
  EXPECT_EQ(describe(*batching_of({}, 0)), "continuous");
  EXPECT_EQ(describe(*batching_of(settings("", {.enabled = true}), 0)),
            "windowed: batches of up to 32 requests, after 15 ms");
  EXPECT_EQ(describe(*batching_of(settings("windowed"), 0)),
            "windowed: batches of up to 128 requests, after 100 ms or 50 ms without an arrival, arrived within "
            "200 ms");
}

}  // namespace
}  // namespace sluice
