#include "cli/reload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice::cli {
namespace {

// Notes what it is asked to change.
class NotingEngine final : public Engine {
 public:
  const EngineInfo& info() const override { return info_; }
  EngineStatus status() const override { return {}; }
  Result<std::shared_ptr<RequestStream>> submit(Request, std::function<void()>) override {
    return Error{ErrorCode::kUnavailable, ""};
  }
  void drain(TimeNs) override {}
  Result<std::string> reschedule(const EngineConfig& config) override {
    Result<Policy> made = policy_with(policy_, config.batching, config.scheduling, config.mixed_prompt_tokens);
    if (!made) return std::move(made).error();
    const std::string change = describe_change(policy_, *made);
    policy_ = *made;
    changes.push_back(change);
    return change;
  }
  std::vector<std::string> changes;

 private:
  EngineInfo info_;
  Policy policy_;
};

TEST(Reload, WhatChangesIsHandedOn) {
  Config read;
  Reload reload(Config(), [&] { return Result<Config>(read); }, {});
  NotingEngine engine;
  read.model.engine.scheduling.target_itl_ms = 20;
  read.server.port = 1;  // needs a restart, and keeps nothing else back
  reload.apply(engine);
  read.model.engine.batching.policy = "serial";
  reload.apply(engine);
  reload.apply(engine);
  EXPECT_EQ(engine.changes, (std::vector<std::string>{"target_itl_ms: automatic -> 20 ms",
                                                      "batching: continuous -> serial", ""}));
}

TEST(Reload, WhatIsRefusedChangesNothing) {
  Result<Config> read = Error{ErrorCode::kInvalidArgument, "sluice.yaml:1: no"};
  Reload reload(Config(), [&] { return read; }, {});
  NotingEngine engine;
  reload.apply(engine);
  Config wrong;
  wrong.model.engine.scheduling.batch_weight = 0;
  read = wrong;
  reload.apply(engine);
  EXPECT_TRUE(engine.changes.empty());
}

TEST(Reload, TrafficIsHandedToTheServerWhereItChanged) {
  Config read;
  std::vector<TrafficSettings> given;
  Reload reload(Config(), [&] { return Result<Config>(read); },
                {[&](const TrafficSettings& settings) {
                   given.push_back(settings);
                   return Status();
                 },
                 {}});
  NotingEngine engine;
  reload.apply(engine);
  read.server.traffic.keys.requests_per_minute = 5;
  reload.apply(engine);
  reload.apply(engine);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0], read.server.traffic);
}

struct Swaps {
  explicit Swaps(const Config& running)
      : read(running),
        reload(running, [this] { return Result<Config>(read); },
               {{}, [this](const LoadOptions& options) { begun.push_back(options); }}) {}
  void apply() { reload.apply(engine); }

  Config read;
  std::vector<LoadOptions> begun;
  NotingEngine engine;
  Reload reload;
};

TEST(Reload, AnotherModelIsLoadedWithAllOfItsKeys) {
  Config running;
  running.model.path = "a.gguf";
  Swaps swaps(running);
  swaps.read.model.engine.kv_bytes = 1 << 20;
  swaps.apply();
  EXPECT_TRUE(swaps.begun.empty()) << "the model as it is needs a restart for that";
  swaps.read.model.path = "b.gguf";
  swaps.apply();
  ASSERT_EQ(swaps.begun.size(), 1u);
  EXPECT_EQ(swaps.begun[0].path, "b.gguf");
  EXPECT_EQ(swaps.begun[0].engine.kv_bytes, size_t(1 << 20));
  swaps.reload.swapped(true);
  swaps.apply();
  EXPECT_EQ(swaps.begun.size(), 1u) << "it is there";
}

TEST(Reload, AModelThatCouldNotBeLoadedIsTriedAgain) {
  Swaps swaps{Config()};
  swaps.read.model.path = "b.gguf";
  swaps.apply();
  swaps.reload.swapped(false);
  swaps.apply();
  EXPECT_EQ(swaps.begun.size(), 2u);
  swaps.reload.swapped(false);
  swaps.read.model.path.clear();
  swaps.apply();
  EXPECT_EQ(swaps.begun.size(), 2u) << "nobody wants it any more";
}

TEST(Reload, AnotherFileBehindTheSamePathIsAnotherModel) {
  const std::filesystem::path folder = testing::TempDir() + "sluice_reload";
  std::filesystem::create_directories(folder);
  for (const char* name : {"a", "b"}) std::ofstream(folder / name) << name;
  const auto point_at = [&](const char* name) {
    std::filesystem::remove(folder / "current");
    std::filesystem::create_symlink(name, folder / "current");
  };
  point_at("a");
  Config running;
  running.model.path = folder / "current";
  Swaps swaps(running);
  swaps.apply();
  EXPECT_TRUE(swaps.begun.empty());
  point_at("b");
  swaps.apply();
  EXPECT_EQ(swaps.begun.size(), 1u);
  std::filesystem::remove_all(folder);
}

TEST(Reload, TheKeysOfAModel) {
  EXPECT_TRUE(is_of_model(*find_key("model.path")));
  EXPECT_TRUE(is_of_model(*find_key("kv.precision")));
  EXPECT_TRUE(is_of_model(*find_key("cpu.threads")));
  EXPECT_FALSE(is_of_model(*find_key("engine.watchdog_s")));
  EXPECT_FALSE(is_of_model(*find_key("server.port")));
}

TEST(Reload, TheKeysThatAreLive) {
  int live = 0;
  for (const Key& key : config_keys())
    live += is_live(key.name) && !std::string_view(key.name).starts_with("traffic.");
  EXPECT_TRUE(is_live("traffic.limit.mode"));
  EXPECT_EQ(live, 13) << "docs/scheduling.md lists them";
  EXPECT_FALSE(is_live("engine.max_sequences"));
}

TEST(ChangedKeys, AreThoseOfOtherValues) {
  Config a, b;
  EXPECT_TRUE(changed_keys(a, b).empty());
  b.server.api_keys = {"x"};
  b.model.engine.max_queue = 5;
  std::vector<std::string> names;
  for (const Key* key : changed_keys(a, b)) names.emplace_back(key->name);
  EXPECT_EQ(names, (std::vector<std::string>{"engine.max_queue", "server.api_keys"}));
}

}  // namespace
}  // namespace sluice::cli
