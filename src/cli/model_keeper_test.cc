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

// Half of its blocks hold something.
class HalfFull final : public ServedModel {
 public:
  class HalfFullEngine final : public Engine {
   public:
    HalfFullEngine() { info_.kv_bytes = 1000; }
    const EngineInfo& info() const override { return info_; }
    EngineStatus status() const override {
      EngineStatus status;
      status.blocks_used = 2, status.blocks_cached = 3, status.blocks_total = 10;
      status.busy_since = busy_since.load();
      return status;
    }
    Result<std::shared_ptr<RequestStream>> submit(Request, std::function<void()>) override {
      return Error{ErrorCode::kUnavailable, ""};
    }
    void stop_gathering() override { gathers = false; }
    void drain(TimeNs) override {}
    std::atomic<TimeNs> busy_since{0};
    bool gathers = true;

   private:
    EngineInfo info_;
  };
  HalfFullEngine& engine() override { return engine_; }
  const Tokenizer& tokenizer() const override { std::abort(); }
  const ChatTemplate* chat_template() const override { return nullptr; }
  GrammarCompiler& grammars() override { std::abort(); }
  const GenerationDefaults& defaults() const override { std::abort(); }
  const std::string& name() const override { return path_; }
  const std::string& path() const override { return path_; }

 private:
  HalfFullEngine engine_;
  const std::string path_ = "half_full.gguf";
};

TEST(ModelKeeper, MemoryIsPromisedToAllModelsThatAreHere) {
  ModelKeeper keeper([] {}, 60);
  EXPECT_EQ(keeper.promised_bytes(), 0u);
  auto old = std::make_unique<HalfFull>();
  auto& its = old->engine();
  its.busy_since = now_ns();
  std::shared_ptr<ServedModel> first = keeper.keep(std::move(old), 0);
  EXPECT_EQ(keeper.promised_bytes(), 500u);
  const auto second = keeper.keep(std::make_unique<HalfFull>(), 0);
  EXPECT_EQ(keeper.promised_bytes(), 1000u);
  first.reset();
  EXPECT_EQ(keeper.promised_bytes(), 1000u) << "until it has been freed";
  EXPECT_TRUE(keeper.is_freeing());
  its.busy_since = 0;
  while (keeper.is_freeing()) std::this_thread::yield();
  EXPECT_EQ(keeper.promised_bytes(), 500u);
}

TEST(ModelKeeper, ReplacedModelsHearTooThatNobodyElseWillCome) {
  ModelKeeper keeper([] {}, 60);
  auto old = std::make_unique<HalfFull>(), present = std::make_unique<HalfFull>();
  const auto &first = old->engine(), &second = present->engine();
  const auto replaced = keeper.keep(std::move(old), 0), serves = keeper.keep(std::move(present), 0);
  keeper.stop_gathering();
  EXPECT_FALSE(first.gathers || second.gathers);
}

}  // namespace
}  // namespace sluice::cli
