#include "cli/model_keeper.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

LoadOptions tiny() {
  LoadOptions options;
  options.path = std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/llama-tied";
  options.device = "cpu";
  options.cpu.threads = 1;
  options.engine.max_sequences = 1;
  return options;
}

// As where a server is told to stop while it swaps its model, and the load ends before the last answer does.
TEST(ModelKeeper, ALoadThatNobodyTookEndsWithTheKeeper) {
  ModelKeeper keeper([] {}, 60);
  keeper.load(tiny(), {});
  while (keeper.is_loading()) std::this_thread::yield();
}

TEST(ModelKeeper, ALoadThatIsUnderWayIsWaitedFor) {
  std::atomic<bool> began{false};
  {
    ModelKeeper keeper([&] { began = true; }, 60);
    keeper.load(tiny(), {});
  }
  EXPECT_TRUE(began);
}

TEST(ModelKeeper, WhatALoadGaveIsTakenOnce) {
  ModelKeeper keeper([] {}, 60);
  keeper.load(tiny(), {});
  while (keeper.is_loading()) std::this_thread::yield();
  auto taken = keeper.take();
  ASSERT_TRUE(taken);
  EXPECT_TRUE(taken->ok()) << taken->error().message;
  EXPECT_FALSE(keeper.take());
}

}  // namespace
}  // namespace sluice::cli
