#include "cli/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/canary_config.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;

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
  reload.apply(engine, nullptr);
  read.model.engine.batching.policy = "serial";
  reload.apply(engine, nullptr);
  reload.apply(engine, nullptr);
  EXPECT_EQ(engine.changes, (std::vector<std::string>{"target_itl_ms: automatic -> 20 ms",
                                                      "batching: continuous -> serial", ""}));
}

TEST(Reload, WhatIsRefusedChangesNothing) {
  Result<Config> read = Error{ErrorCode::kInvalidArgument, "sluice.yaml:1: no"};
  Reload reload(Config(), [&] { return read; }, {});
  NotingEngine engine;
  reload.apply(engine, nullptr);
  Config wrong;
  wrong.model.engine.scheduling.batch_weight = 0;
  read = wrong;
  reload.apply(engine, nullptr);
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
                 {},
                 {}});
  NotingEngine engine;
  reload.apply(engine, nullptr);
  read.server.traffic.keys.requests_per_minute = 5;
  reload.apply(engine, nullptr);
  reload.apply(engine, nullptr);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0], read.server.traffic);
}

TEST(Reload, TrafficThatTheServerRefusesKeepsNothingElseFromTakingEffect) {
  Config read;
  int asked = 0;
  Reload reload(Config(), [&] { return Result<Config>(read); },
                {[&](const TrafficSettings&) {
                   ++asked;
                   return Status(Error{ErrorCode::kInvalidArgument, "no such upstream"});
                 },
                 {},
                 {}});
  NotingEngine engine;
  read.server.traffic.keys.requests_per_minute = 5;
  read.model.engine.scheduling.batch_weight = 3;
  reload.apply(engine, nullptr);
  const size_t changes = engine.changes.size();
  EXPECT_EQ(changes, 1u);
  reload.apply(engine, nullptr);
  EXPECT_EQ(asked, 2) << "it is tried again each time, since it has not taken effect";
}

struct Loads {
  explicit Loads(const Config& running)
      : read(running),
        reload(running, [this] { return Result<Config>(read); },
               {[](const TrafficSettings&) { return Status(); },
                [this](Pool pool, const Config& config) {
                  begun.push_back(pool_name(pool) + (" " + config.model.path));
                  last = config;
                },
                [this] { begun.push_back("no canary"); }}) {}
  // What is begun by it.
  std::vector<std::string> apply() {
    begun.clear();
    reload.apply(engine, nullptr);
    return begun;
  }

  Config read, last;
  std::vector<std::string> begun;
  NotingEngine engine;
  Reload reload;
};

using Begun = std::vector<std::string>;

Config config_of(const std::string& path) {
  Config config;
  config.model.path = path;
  return config;
}

TEST(Reload, AnotherModelIsLoadedWithAllOfItsKeys) {
  Loads loads(config_of("a"));
  loads.read.model.engine.kv_bytes = 1 << 20;
  EXPECT_EQ(loads.apply(), Begun{}) << "the model as it is needs a restart for that";
  loads.read.model.path = "b";
  EXPECT_EQ(loads.apply(), Begun{"stable b"});
  EXPECT_EQ(loads.last.model.engine.kv_bytes, size_t(1 << 20));
  loads.reload.loaded(Pool::stable, true);
  EXPECT_EQ(loads.apply(), Begun{}) << "it is there";
}

TEST(Reload, AModelThatCouldNotBeLoadedIsTriedAgain) {
  Loads loads(config_of("a"));
  loads.read.model.path = "b";
  EXPECT_EQ(loads.apply(), Begun{"stable b"});
  loads.reload.loaded(Pool::stable, false);
  EXPECT_EQ(loads.apply(), Begun{"stable b"});
  loads.reload.loaded(Pool::stable, false);
  loads.read.model.path = "a";
  EXPECT_EQ(loads.apply(), Begun{}) << "nobody wants it any more";
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
  Loads loads(config_of(folder / "current"));
  EXPECT_EQ(loads.apply(), Begun{});
  point_at("b");
  EXPECT_EQ(loads.apply().size(), 1u);
  std::filesystem::remove_all(folder);
}

TEST(Reload, ACanaryComesChangesAndGoes) {
  Loads loads(config_of("a"));
  CanarySettings& canary = loads.read.server.traffic.canary;
  canary.model = "b";
  EXPECT_EQ(loads.apply(), Begun{"canary b"});
  loads.reload.loaded(Pool::canary, true);
  EXPECT_EQ(loads.apply(), Begun{});
  canary.steps = {"50"};
  EXPECT_EQ(loads.apply(), Begun{}) << "the model is the same";
  canary.settings = {"engine.kv_bytes=1000000"};
  EXPECT_EQ(loads.apply(), (Begun{"no canary", "canary b"}));
  EXPECT_EQ(loads.last.model.engine.kv_bytes, 1000000u);
  loads.reload.loaded(Pool::canary, true);
  loads.read.model.engine.scheduling.target_itl_ms = 20;
  EXPECT_EQ(loads.apply(), Begun{}) << "its engine takes that as it runs";
  canary = {};
  EXPECT_EQ(loads.apply(), Begun{"no canary"});
  EXPECT_EQ(loads.apply(), Begun{});
}

TEST(Reload, ACanaryOfTheSameModelFollowsIt) {
  Config running = config_of("a");
  running.server.traffic.canary.settings = {"kv.precision=int8"};
  Loads loads(running);
  EXPECT_EQ(loads.apply(), Begun{}) << "both run";
  loads.read.model.path = "b";
  EXPECT_EQ(loads.apply(), (Begun{"no canary", "stable b", "canary b"}));
  loads.reload.loaded(Pool::stable, true);
  loads.reload.loaded(Pool::canary, false);
  EXPECT_EQ(loads.apply(), Begun{"canary b"}) << "it is tried again";
}

TEST(CanaryConfig, IsTheServersWithItsOwnOverIt) {
  Config config = config_of("a");
  config.model.engine.max_context = 512;
  EXPECT_FALSE(canary_config(config)->has_value());
  config.server.traffic.canary.settings = {"kv.precision=int8", "cpu.threads=3"};
  const Config canary = **canary_config(config);
  EXPECT_EQ(canary.model.path, "a");
  EXPECT_EQ(canary.model.engine.max_context, 512);
  EXPECT_EQ(canary.model.engine.kv.precision, "int8");
  EXPECT_EQ(canary.model.cpu.threads, 3);
}

TEST(CanaryConfig, WhatMakesNoSenseIsRefusedByName) {
  const auto why = [](const std::string& setting) {
    Config config;
    config.server.traffic.canary.settings = {setting};
    const auto made = canary_config(config);
    EXPECT_FALSE(made.ok()) << setting;
    return made.ok() ? "" : made.error().field + ": " + made.error().message;
  };
  EXPECT_THAT(why("kv.precision"), HasSubstr("traffic.canary.settings: expected KEY=VALUE"));
  EXPECT_THAT(why("kv.precison=int8"), HasSubstr("kv.precision"));
  EXPECT_THAT(why("kv.precision=int9"), HasSubstr("kv.precision: expected one of"));
  EXPECT_THAT(why("server.port=1"), HasSubstr("server.port is not"));
  EXPECT_THAT(why("traffic.canary.model=b"), HasSubstr("is not"));
  EXPECT_THAT(why("model.path=b"), HasSubstr("traffic.canary.model"));
}

TEST(CpuShares, AddUpToTheCores) {
  Config config;
  const auto shares = [&](int cores, std::optional<Config> canary) {
    const CpuShares s = cpu_shares(config, canary, cores);
    return std::pair(s.stable, s.canary);
  };
  EXPECT_EQ(shares(8, std::nullopt), std::pair(0, 0)) << "the backend decides";
  EXPECT_EQ(shares(8, Config()), std::pair(6, 2));
  EXPECT_EQ(shares(2, Config()), std::pair(1, 1));
  EXPECT_EQ(shares(1, Config()), std::pair(1, 1)) << "the canary's have the lowest priority";
  Config own;
  own.model.cpu.threads = 4;
  EXPECT_EQ(shares(8, own), std::pair(4, 4));
  config.model.cpu.threads = 7;
  EXPECT_EQ(shares(8, own), std::pair(7, 4)) << "as configured";
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
