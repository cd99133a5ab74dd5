#include "cli/reload.h"

#include <gtest/gtest.h>

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
  Reload reload(
      Config(), [&] { return Result<Config>(read); },
      [&](const TrafficSettings& settings) {
        given.push_back(settings);
        return Status();
      });
  NotingEngine engine;
  reload.apply(engine);
  read.server.traffic.keys.requests_per_minute = 5;
  reload.apply(engine);
  reload.apply(engine);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0], read.server.traffic);
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
