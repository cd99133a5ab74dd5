// The whole engine, its threads included, on a scripted model (fake_runner.h): what its tests start from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/fake_runner.h"
#include "engine/make_engine.h"

namespace sluice {

inline constexpr int kVocab = 1000;

struct Scene {
  Policy policy{.max_running = 8, .step_tokens = 32, .max_queue = 64, .min_progress = 4};
  std::vector<int> windows = {0, 12};
  int context = 512;
  int blocks = 0;  // 0: plenty
  KvTiering tiering = {};
  bool whole_context = false;
  std::vector<int32_t> end_ids = {};
  KvOutside outside = {};
  MeterPlace meters = {};
};

// Every test runs on a device that computes in launch, as the CPU does, and on one that works behind the host,
// as a card does; the latter with replay.
class EngineTest : public testing::TestWithParam<FakeRunner::Device> {
 protected:
  void make(Scene scene = {}) {
    scene_ = scene;
    const KvLayout layout{.block_tokens = 4,
                          .windows = scene.windows,
                          .max_length = scene.context,
                          .max_step_tokens = scene.policy.step_tokens,
                          .tiering = scene.tiering,
                          .whole_context = scene.whole_context};
    EngineInfo info;
    info.spec.vocab = kVocab;
    info.context = scene.context;
    info.block_tokens = layout.block_tokens;
    info.blocks = scene.blocks ? scene.blocks : layout.peak_blocks(scene.context) * scene.policy.max_running;
    info.kv_bytes = size_t(info.blocks) * FakeRunner::slot_bytes(layout);
    info.end_ids = scene.end_ids;
    auto runner = std::make_unique<FakeRunner>(layout, info.blocks, scene.policy.max_running, kVocab,
                                               GetParam(), scene.outside.host_slots);
    runner_ = runner.get();
    engine_ = make_engine(std::move(info), scene.policy, layout, ModelCost{}, std::move(runner),
                          {.prompts = {16, 3}}, behind(), scene.outside, scene.meters);
  }
  static bool behind() { return GetParam() == FakeRunner::Device::behind_the_host; }
  void TearDown() override {
    if (engine_) runner_->let_go();
  }

  static Request wish(int prompt, int max_tokens, uint64_t seed = 0) {
    Request r;
    std::mt19937 random(uint32_t(prompt * 7919 + seed));
    for (int i = 0; i < prompt; ++i) r.prompt.push_back(int32_t(random() % kVocab));
    r.max_tokens = max_tokens;
    r.sampling.temperature = seed ? 1.0f : 0.0f;
    r.sampling.seed = seed;
    return r;
  }
  std::vector<int32_t> expected(const Request& r) const {
    std::vector<int32_t> ids = r.prompt, out;
    for (int i = 0; i < r.max_tokens; ++i) {
      out.push_back(
          FakeRunner::expected_next(ids, scene_.windows, kVocab, r.sampling.temperature, r.sampling.seed));
      ids.push_back(out.back());
      if (std::find(scene_.end_ids.begin(), scene_.end_ids.end(), out.back()) != scene_.end_ids.end() &&
          !r.ignore_eos)
        break;
    }
    return out;
  }
  void expect_empty() {
    engine_->drain(now_ns() + 60'000'000'000);
    EXPECT_EQ(engine_->status().blocks_used, 0);
    EXPECT_EQ(engine_->status().running, 0);
    EXPECT_EQ(engine_->status().waiting, 0);
  }

  Scene scene_;
  FakeRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

inline std::string device_name(const testing::TestParamInfo<FakeRunner::Device>& info) {
  return info.param == FakeRunner::Device::in_launch ? "InLaunch" : "BehindTheHost";
}

}  // namespace sluice
