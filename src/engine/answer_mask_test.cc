// Answers held to a constraint, on real arithmetic: on devices that compute in `launch` (the mask comes while
// the step runs) and behind the host (the sequence waits for its mask).
#include <gtest/gtest.h>

#include <deque>
#include <mutex>

#include "engine/allocation_counter.h"
#include "engine/make_engine.h"
#include "engine/replaying_backend.h"
#include "engine/test_client.h"
#include "model/checkpoint.h"

namespace sluice {
namespace {

constexpr int32_t kEnd = 2;

// Allows `width` ids from first + 10 k at place k, and at place `length` the end alone.
class Stairs final : public TokenConstraint {
 public:
  Stairs(int32_t first, int length, int width = 3) : first_(first), length_(length), width_(width) {}
  State advance(int32_t sampled, std::span<uint32_t> mask) override {
    if (sampled >= 0 && !holds(sampled, place_++)) return State::kFailed;
    if (hold_) std::lock_guard wait(*hold_);
    if (fail_at == place_) return State::kFailed;
    if (place_ == length_) return State::kOver;
    std::fill(mask.begin(), mask.end(), 0);
    for (int32_t id = 0; id < int32_t(mask.size()) * 32; ++id)
      if (holds(id, place_)) mask[size_t(id) / 32] |= 1u << (id % 32);
    return State::kOpen;
  }
  bool holds(int32_t id, int place) const {
    const int32_t low = first_ + 10 * place;
    return place == length_ ? id == kEnd : id >= low && id < low + width_;
  }
  void hold(std::mutex& mutex) { hold_ = &mutex; }
  int fail_at = -1;

 private:
  const int32_t first_;
  const int length_, width_;
  int place_ = 0;
  std::mutex* hold_ = nullptr;
};

struct Model {
  std::unique_ptr<Backend> backend;
  ModelSpec spec;
  Weights weights;
  std::unique_ptr<Engine> engine;

  explicit Model(std::unique_ptr<Backend> on, int sequences = 16, std::vector<int32_t> end_ids = {kEnd})
      : backend(std::move(on)) {
    const std::string path = std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/llama-tied";
    auto checkpoint = open_checkpoint(path);
    CHECK(checkpoint.ok());
    spec = (*checkpoint)->spec();
    auto loaded = load_weights(**checkpoint, spec, *backend, [](size_t, size_t) {});
    CHECK(loaded.ok());
    weights = std::move(*loaded);
    auto made =
        make_engine({spec, weights, *backend, std::move(end_ids)},
                    {.max_sequences = sequences, .step_tokens = 64, .max_context = 256, .logit_rows = 8});
    CHECK(made.ok());
    engine = std::move(*made);
  }
  ~Model() { engine.reset(); }
};

std::unique_ptr<Backend> cpu() {
  auto made = make_cpu_backend({.threads = 2, .instruction_set = ""});
  CHECK(made.ok());
  return std::move(*made);
}
std::unique_ptr<Backend> backend_named(const std::string& name) {
  return name == "cpu" ? cpu() : std::make_unique<ReplayingBackend>();
}

Request wish(std::shared_ptr<TokenConstraint> constraint, int tokens = 30, uint64_t seed = 1) {
  Request r;
  r.prompt = {5, 6, 7, int32_t(8 + seed % 50)};
  r.max_tokens = tokens;
  r.sampling.seed = seed;
  r.constraint = std::move(constraint);
  return r;
}

class Constrained : public testing::TestWithParam<const char*> {};

TEST_P(Constrained, EveryTokenIsAllowedAndTheEndEnds) {
  Model model(backend_named(GetParam()));
  std::deque<TestClient> clients;
  std::vector<std::shared_ptr<Stairs>> stairs;
  for (uint64_t i = 0; i < 24; ++i) {
    stairs.push_back(std::make_shared<Stairs>(20 + int32_t(i), 3 + int(i % 7)));
    Request r = wish(i % 4 == 3 ? nullptr : stairs.back(), 30, i + 1);
    if (i % 5 == 1) r.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 2) r.sampling.temperature = 0;
    if (i % 5 == 3) r.sampling.top_logprobs = 2;
    clients.emplace_back(*model.engine, std::move(r));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    if (i % 4 == 3) continue;
    EXPECT_EQ(clients[i].reason, FinishReason::stop);
    ASSERT_EQ(clients[i].ids.size(), 4 + i % 7);
    for (size_t k = 0; k < clients[i].ids.size(); ++k)
      EXPECT_TRUE(stairs[i]->holds(clients[i].ids[k], int(k))) << "request " << i << " token " << k;
  }
}

// As with made-up vocabularies. The token that is sampled once all is said is thrown away, and no failure.
TEST_P(Constrained, WithoutEndIdsTheAnswerStopsWhereItsConstraintDoes) {
  Model model(backend_named(GetParam()), 16, {});
  std::deque<TestClient> clients;
  for (uint64_t i = 0; i < 40; ++i)
    clients.emplace_back(*model.engine, wish(std::make_shared<Stairs>(20, 1 + int(i % 5)), 30, i + 1));
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].reason, FinishReason::stop);
    EXPECT_EQ(clients[i].ids.size(), 1 + i % 5);
  }
}

TEST_P(Constrained, AnAnswerCutShortEndsWithLength) {
  Model model(backend_named(GetParam()));
  TestClient client(*model.engine, wish(std::make_shared<Stairs>(20, 12), 5));
  client.finish();
  EXPECT_EQ(client.reason, FinishReason::length);
  EXPECT_EQ(client.ids.size(), 5u);
}

TEST_P(Constrained, AnEndBeforeMinTokensOnlyWhereNothingElseIsAllowed) {
  Model model(backend_named(GetParam()));
  Request r = wish(std::make_shared<Stairs>(20, 4));
  r.min_tokens = 10;
  TestClient client(*model.engine, std::move(r));
  client.finish();
  EXPECT_EQ(client.reason, FinishReason::stop);
  EXPECT_EQ(client.ids.size(), 5u);
  // The second place may be the end or another token: with min_tokens it is the other.
  class EndOr final : public TokenConstraint {
    State advance(int32_t, std::span<uint32_t> mask) override {
      std::fill(mask.begin(), mask.end(), 0);
      mask[0] = 1u << kEnd | 1u << 9;
      return State::kOpen;
    }
  };
  Request open = wish(std::make_shared<EndOr>(), 6);
  open.min_tokens = 6;
  TestClient other(*model.engine, std::move(open));
  other.finish();
  EXPECT_EQ(other.ids, std::vector<int32_t>(6, 9));
}

TEST_P(Constrained, OneThatFailsEndsItsAnswerAndNoOther) {
  Model model(backend_named(GetParam()));
  auto failing = std::make_shared<Stairs>(20, 12);
  failing->fail_at = 3;
  TestClient bad(*model.engine, wish(failing)), good(*model.engine, wish(std::make_shared<Stairs>(20, 12)));
  bad.finish();
  good.finish();
  EXPECT_EQ(bad.reason, FinishReason::failed);
  EXPECT_EQ(bad.ids.size(), 3u);
  EXPECT_EQ(good.reason, FinishReason::stop);
  EXPECT_EQ(good.ids.size(), 13u);
}

// A mask that is long in the making: others go on, and the one who leaves meanwhile is gone at once.
TEST_P(Constrained, AFirstMaskThatTakesLongHoldsUpNobody) {
  Model model(backend_named(GetParam()), 2);
  std::mutex gate;
  auto slow = std::make_shared<Stairs>(20, 12);
  slow->hold(gate);
  std::unique_lock closed(gate);
  TestClient stuck(*model.engine, wish(slow)), leaving(*model.engine, wish(slow));
  TestClient other(*model.engine, wish(nullptr, 20));
  other.finish();
  EXPECT_EQ(other.ids.size(), 20u);
  leaving.stream->cancel();
  leaving.finish();
  EXPECT_EQ(leaving.reason, FinishReason::cancelled);
  closed.unlock();
  stuck.finish();
  EXPECT_NE(stuck.reason, FinishReason::none);
  model.engine->drain(now_ns() + 60'000'000'000);
  EXPECT_EQ(model.engine->status().blocks_used, 0);
}

TEST_P(Constrained, WhoWaitsForAFirstMaskEndsByDeadlineAndByDrain) {
  std::mutex gate;
  auto slow = std::make_shared<Stairs>(20, 12);
  slow->hold(gate);
  Model model(backend_named(GetParam()), 2);
  std::unique_lock closed(gate);
  Request hurried = wish(slow);
  hurried.deadline = now_ns() + 100'000'000;
  TestClient late(*model.engine, std::move(hurried)), left(*model.engine, wish(slow));
  late.finish();
  EXPECT_EQ(late.reason, FinishReason::deadline);
  model.engine->drain(now_ns());
  left.finish();
  EXPECT_EQ(left.reason, FinishReason::cancelled);
}

TEST_P(Constrained, ACancelStormLeavesNothing) {
  Model model(backend_named(GetParam()), 4);
  std::deque<TestClient> clients;
  for (uint64_t i = 0; i < 60; ++i) {
    clients.emplace_back(*model.engine, wish(std::make_shared<Stairs>(20, 20), 30, i));
    if (i % 3) clients[size_t(i * 7) % clients.size()].stream->cancel();
  }
  for (TestClient& c : clients) c.finish();
  model.engine->drain(now_ns() + 60'000'000'000);
  EXPECT_EQ(model.engine->status().blocks_used, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, Constrained, testing::Values("cpu", "behind_the_host"),
                         [](const auto& info) { return std::string(info.param); });

// The mask comes while the step runs, so an answer takes as many steps as without one.
TEST(LateMasks, TakeEveryStep) {
  Model model(cpu());
  TestClient client(*model.engine, wish(std::make_shared<Stairs>(20, 20)));
  client.finish();
  ASSERT_EQ(client.ids.size(), 21u);
  EXPECT_EQ(client.stream->times().steps, 21);
  EXPECT_LE(model.engine->status().steps, 23u) << "one or two more: those in flight when it ended";
}

TEST(LateMasks, AWarmStepAllocatesNothing) {
  Model model(cpu());
  const auto burst = [&] {
    std::deque<TestClient> clients;
    for (uint64_t i = 0; i < 30; ++i)
      clients.emplace_back(*model.engine, wish(std::make_shared<Stairs>(20, 15), 30, i));
    for (TestClient& c : clients) c.finish();
  };
  burst();
  const uint64_t before = engine_allocations();
  burst();
  EXPECT_EQ(engine_allocations(), before);
}

}  // namespace
}  // namespace sluice
