// What a card that is too small, or not made for a model, says: no start may end in a CHECK.
#include "engine/make_engine.h"

#include <gtest/gtest.h>

#include "engine/replaying_backend.h"
#include "model/checkpoint.h"

namespace sluice {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

// The fake device with a card's memory, and a way to run out of it.
class SmallCard final : public ReplayingBackend {
 public:
  DeviceInfo info() const override {
    DeviceInfo info = ReplayingBackend::info();
    info.name = "Small";
    info.memory_total = 4 * kGiB, info.memory_bytes = free_bytes, info.memory_others = kGiB;
    return info;
  }
  Status check(const DeviceNeeds& needs) const override {
    asked = needs;
    return refuses;
  }
  Buffer alloc(size_t bytes) override { return bytes > largest ? Buffer() : ReplayingBackend::alloc(bytes); }
  Buffer alloc_host(size_t bytes) override {
    return bytes > largest_on_host ? Buffer() : ReplayingBackend::alloc_host(bytes);
  }
  Status reserve(const WorkspaceShape& shape) override {
    if (scratch) return ReplayingBackend::reserve(shape);
    return Error{ErrorCode::kResourceExhausted, "attention's scratch"};
  }

  size_t free_bytes = 2 * kGiB, largest = SIZE_MAX, largest_on_host = SIZE_MAX;
  bool scratch = true;
  Status refuses;
  mutable DeviceNeeds asked;
};

class OnASmallCard : public testing::Test {
 protected:
  OnASmallCard() {
    auto opened = open_checkpoint(std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/llama-tied");
    CHECK(opened.ok());
    checkpoint_ = std::move(*opened);
    spec_ = checkpoint_->spec();
  }
  // The message of a start that fails; empty: it did not.
  Error start() {
    auto weights = load_weights(*checkpoint_, spec_, card_, {});
    if (!weights) return weights.error();
    card_.largest = most_after_weights_;
    auto steps = make_steps(spec_, *weights, card_, config_);
    return steps ? Error{} : steps.error();
  }
  static void expect(const Error& error, ErrorCode code, std::initializer_list<const char*> said) {
    EXPECT_EQ(int(error.code), int(code));
    for (const char* words : said) EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find("quantized"), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  }

  SmallCard card_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelSpec spec_;
  EngineConfig config_{.max_sequences = 4, .step_tokens = 64, .max_context = 256, .logit_rows = 8};
  size_t most_after_weights_ = SIZE_MAX;
};

TEST_F(OnASmallCard, StatesAreNotPooled) {
  auto weights = load_weights(*checkpoint_, spec_, card_, {});
  ASSERT_TRUE(weights.ok());
  auto engine = make_engine({spec_, *weights, card_, {}}, config_);
  ASSERT_TRUE(engine.ok());
  Request wish;
  wish.prompt = {1, 2};
  wish.pooling = Pooling::last;
  const auto refused = (*engine)->submit(wish, [] {});
  ASSERT_FALSE(refused.ok());
  expect(refused.error(), ErrorCode::kUnsupported, {"on a CPU only"});
}

TEST_F(OnASmallCard, AModelStarts) {
  EXPECT_EQ(start().message, "");
  EXPECT_EQ(card_.asked.hidden, spec_.hidden);
  EXPECT_EQ(card_.asked.head_dim, spec_.head_dim);
  EXPECT_EQ(card_.asked.step_tokens, 64);
  EXPECT_EQ(card_.asked.max_sequences, 4);
}

TEST_F(OnASmallCard, AVectorThatFindsNoMemoryIsNamed) {
  card_.largest = 16;
  expect(start(), ErrorCode::kResourceExhausted, {"llama-tied", "norm.weight", "full"});
}

TEST_F(OnASmallCard, ActivationsSayHowMuchIsShort) {
  most_after_weights_ = 16;
  card_.free_bytes = 0;
  const Error error = start();
  expect(error, ErrorCode::kResourceExhausted,
         {"the activations of 64 tokens", "GiB are short", "engine.step_tokens (64)",
          "engine.max_sequences (4)", "1.0 GiB are used by other processes"});
  EXPECT_EQ(error.message.find("kv_bytes"), std::string::npos) << "that is the pool's: " << error.message;
}

TEST_F(OnASmallCard, ArraysOfStepsThatFindNoMemoryAreAnError) {
  card_.largest_on_host = 1000;
  expect(start(), ErrorCode::kResourceExhausted,
         {"the arrays of steps of 4 sequences of 256 tokens", "engine.max_sequences (4)"});
}

TEST_F(OnASmallCard, ScratchThatFindsNoMemoryIsAnError) {
  card_.scratch = false;
  expect(start(), ErrorCode::kResourceExhausted, {"workspaces (attention's scratch)", "engine.step_tokens"});
}

TEST_F(OnASmallCard, APoolThatFindsNoMemoryNamesItsOwnSettings) {
  config_.kv_bytes = 3 * kGiB;
  most_after_weights_ = 2 * kGiB;
  const Error error = start();
  expect(error, ErrorCode::kResourceExhausted,
         {"3.00 GiB of keys and values: 1.00 GiB are short", "engine.kv_bytes", "engine.max_context"});
  EXPECT_EQ(error.message.find("step_tokens"), std::string::npos) << error.message;
}

TEST_F(OnASmallCard, WhatTheKernelsCannotIsRefused) {
  card_.refuses = Error{ErrorCode::kUnsupported, "heads of 24 columns"};
  expect(start(), ErrorCode::kUnsupported, {"heads of 24 columns; use --device cpu"});
  card_.refuses = Error{ErrorCode::kUnsupported, "at most 1024", "engine.max_sequences"};
  expect(start(), ErrorCode::kUnsupported, {"at most 1024; change it, or use --device cpu"});
}

TEST(Settled, ThereIsRoomForAWholeBatch) {
  const DeviceInfo cpu;
  EngineConfig config;
  EXPECT_EQ(settled(config, cpu).max_sequences, 64);
  config.batching.policy = "windowed";
  EXPECT_EQ(settled(config, cpu).max_sequences, 128);
  config.batching.policy.clear();
  config.batching.dynamic.enabled = true;
  EXPECT_EQ(settled(config, cpu).max_sequences, 64) << "batches of 32";
  config.max_sequences = 40;
  EXPECT_EQ(settled(config, cpu).max_sequences, 40);
}

TEST_F(OnASmallCard, AContradictionIsRefused) {
  config_.batching.policy = "windowed";
  config_.batching.window.max_batch_size = 5;
  const auto weights = load_weights(*checkpoint_, spec_, card_, {});
  ASSERT_TRUE(weights);
  const auto engine = make_engine({spec_, *weights, card_, {}}, config_);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().field, "scheduler.window.max_batch_size");
  expect(engine.error(), ErrorCode::kInvalidArgument, {"at most engine.max_sequences (4), not 5"});
}

}  // namespace
}  // namespace sluice
