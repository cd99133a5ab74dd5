// `--dummy null`: an engine that computes nothing, behind everything that a real one has.
#include "engine/null_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/served_model.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

constexpr int kVocab = 1000;

std::unique_ptr<Engine> null_engine(std::vector<int32_t> end_ids = {}, EngineConfig config = {}) {
  ModelSpec spec;
  spec.vocab = kVocab, spec.context = 256, spec.hidden = 8;
  auto engine = make_null_engine(spec, std::move(end_ids), config);
  CHECK(engine.ok());
  return std::move(*engine);
}

Request wish(int prompt, int max_tokens) {
  Request r;
  r.prompt.assign(size_t(prompt), 7);
  r.max_tokens = max_tokens;
  return r;
}

TEST(NullEngine, AnswersWithWordsThatFollowFromTheirPositions) {
  const auto engine = null_engine();
  TestClient first(*engine, wish(5, 20)), again(*engine, wish(5, 20));
  first.finish();
  again.finish();
  EXPECT_EQ(first.reason, FinishReason::length);
  ASSERT_EQ(first.ids.size(), 20u);
  EXPECT_EQ(first.ids, again.ids);
  EXPECT_EQ(std::set<int32_t>(first.ids.begin(), first.ids.end()).size(), 20u);
  for (const int32_t id : first.ids) EXPECT_TRUE(id >= 256 && id < kVocab) << id;
}

TEST(NullEngine, EndIdsWaitForMinTokens) {
  const auto endless = null_engine();
  TestClient probe(*endless, wish(5, 1));
  probe.finish();
  const auto engine = null_engine({probe.ids.front()});
  TestClient ends(*engine, wish(5, 20));
  ends.finish();
  EXPECT_EQ(ends.reason, FinishReason::stop);
  EXPECT_EQ(ends.ids.size(), 1u);
  Request longer = wish(5, 20);
  longer.min_tokens = 3;
  TestClient waits(*engine, longer);
  waits.finish();
  EXPECT_GE(waits.ids.size(), 3u);
}

TEST(NullEngine, EveryTokenIsEquallyLikely) {
  const auto engine = null_engine();
  Request r = wish(5, 2);
  r.sampling.top_logprobs = 3;
  TestClient client(*engine, r);
  client.finish();
  EXPECT_EQ(client.last.logprobs.count, 3);
  EXPECT_FLOAT_EQ(client.last.logprobs.values[2], client.last.logprobs.logprob);
  EXPECT_FLOAT_EQ(client.last.logprobs.logprob, -std::log(float(kVocab)));
}

TEST(NullEngine, HasRoomForAllThatMayRun) {
  EngineConfig config;
  config.max_sequences = 300;
  const auto engine = null_engine({}, config);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<TestClient>(*engine, wish(20, 200)));
  for (auto& client : clients) client->finish();
  for (auto& client : clients) EXPECT_EQ(client->ids.size(), 200u);
}

TEST(NullEngine, SettingsThatContradictEachOtherAreRefused) {
  ModelSpec spec;
  spec.vocab = kVocab, spec.context = 256;
  EngineConfig config;
  config.max_sequences = 4;
  config.batching.policy = "windowed";
  config.batching.window.max_batch_size = 8;
  const auto engine = make_null_engine(spec, {}, config);
  ASSERT_FALSE(engine.ok());
  EXPECT_FALSE(engine.error().field.empty());
}

TEST(NullEngine, IsServedWithoutADevice) {
  LoadOptions options;
  options.path = "dummy:null";
  options.device = "cuda:7";
  const auto loaded = load_model(options, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  ServedModel& model = **loaded;
  EXPECT_NE(model.chat_template(), nullptr);
  EXPECT_EQ(model.engine().info().weight_bytes, 0u);
  TestClient client(model.engine(), wish(3, 4));
  client.finish();
  EXPECT_EQ(client.ids.size(), 4u);
}

}  // namespace
}  // namespace sluice
