#include "engine/kv_evaluation.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "engine/replaying_backend.h"
#include "model/checkpoint.h"

namespace sluice {
namespace {

// A device whose kernels do not fit every cache.
class Particular final : public ReplayingBackend {
 public:
  bool has_kv_tier(KvTier) const override { return true; }
  Status check(const DeviceNeeds& needs) const override {
    if (needs.head_dim == refused_head_dim || (needs.kv_tiers && refuses_tiers))
      return Error{ErrorCode::kUnsupported, "no kernel for such heads"};
    return {};
  }
  void finish_step() override {
    std::promise<void> done;
    enqueue([&] { done.set_value(); });
    done.get_future().wait();
  }
  int refused_head_dim = -1;
  bool refuses_tiers = false;
};

class KvEvaluationTest : public testing::Test {
 protected:
  KvEvaluationTest() {
    auto opened = open_checkpoint(std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/llama-tied");
    CHECK(opened.ok());
    checkpoint_ = std::move(*opened);
    spec_ = checkpoint_->spec();
    std::iota(ids_.begin(), ids_.end(), 1);
  }
  auto compare(const char* precision) {
    auto weights = load_weights(*checkpoint_, spec_, device_, {});
    CHECK(weights.ok());
    const EvaluatedModel wished[] = {{spec_, *weights, device_, {.precision = precision}}};
    return compare_models({spec_, *weights, device_}, wished, ids_, {.block_tokens = 16, .window_tokens = 32});
  }

  Particular device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelSpec spec_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(32);
};

TEST_F(KvEvaluationTest, WhatTheDeviceHasNoKernelForIsSaidOfItsRowAlone) {
  device_.refuses_tiers = true;
  const auto found = compare("int8");
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_FALSE((*found)[0].ok());
  EXPECT_EQ((*found)[0].error().message, "no kernel for such heads");
}

TEST_F(KvEvaluationTest, ABaselineThatCannotRunIsTheWholesError) {
  device_.refused_head_dim = spec_.head_dim;
  const auto found = compare("bf16");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().message, "no kernel for such heads");
}

TEST_F(KvEvaluationTest, HalfPrecisionIsNearlyFull) {
  const auto found = compare("bf16");
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_TRUE((*found)[0].ok());
  EXPECT_NEAR((*found)[0]->perplexity / (*found)[0]->full_perplexity, 1, 1e-3);
  EXPECT_LT((*found)[0]->mean_kl, 1e-3);
  EXPECT_EQ((*found)[0]->tokens, 31);
}

}  // namespace
}  // namespace sluice
