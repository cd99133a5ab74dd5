// What the engine does when a step fails, a sequence is made to give way, or its thread stalls (base/faults.h).
#include <gtest/gtest.h>

#include <deque>

#include "base/faults.h"
#include "engine/engine_fixture.h"
#include "engine/test_client.h"

namespace sluice {
namespace {

class PlantedFaultsTest : public EngineTest {
 protected:
  void plant(const char* plan) { faults::arm(*parse_faults(plan)); }
  void TearDown() override {
    EngineTest::TearDown();
    engine_.reset();
    faults::disarm();
  }
  static Request named(const char* id, int prompt, int tokens) {
    Request r = wish(prompt, tokens);
    r.id = id;
    return r;
  }
};

TEST_P(PlantedFaultsTest, AFailedStepEndsItsRequestsAndNoOthers) {
  plant("step_failure:request=broken,from=3,count=1");
  make({.policy = {
            .max_running = 8, .step_tokens = 32, .max_queue = 64, .min_progress = 4, .prefix_cache = true}});
  TestClient broken(*engine_, named("broken", 9, 20));
  broken.finish();
  EXPECT_EQ(broken.reason, FinishReason::failed);
  EXPECT_EQ(broken.ids.size(), 2u) << "the third token's step failed";
  const Request other = named("other", 9, 20);  // begins alike, so that it would find what the failed step left
  TestClient client(*engine_, other);
  client.finish();
  EXPECT_EQ(client.ids, expected(other));
  bool recorded = false;
  for (const StepRecord& r : engine_->step_ledger()->last(StepLedger::kCapacity)) recorded |= r.failed;
  EXPECT_TRUE(recorded);
  expect_empty();
}

TEST_P(PlantedFaultsTest, APreemptionIsToldWithTheTokenThatWaitedForIt) {
  plant("preempt:request=odd,from=5,count=1");
  make();
  const Request wanted = named("odd", 9, 12);
  TestClient client(*engine_, wanted);
  std::vector<bool> told;
  while (client.reason == FinishReason::none) {
    const TokenEvent event = client.next();
    client.take(event);
    told.push_back(event.preempted);
  }
  EXPECT_EQ(client.ids, expected(wanted));
  EXPECT_EQ(std::count(told.begin(), told.end(), true), 1);
  EXPECT_TRUE(told[4]);
  expect_empty();
}

TEST_P(PlantedFaultsTest, RecordsTellWhatTheEnginesThreadDid) {
  plant("engine_alloc:from=4,count=1,amount=5000; cpu_stall:from=6,count=1,amount=3");
  make();
  TestClient client(*engine_, named("x", 5, 12));
  client.finish();
  expect_empty();
  const auto records = engine_->step_ledger()->between(1, 12);
  ASSERT_EQ(records.size(), 12u);
  EXPECT_GE(records[3].allocations, 5000);
  EXPECT_GE(records[5].plan_ns, 3'000'000);
}

INSTANTIATE_TEST_SUITE_P(Devices, PlantedFaultsTest,
                         testing::Values(FakeRunner::Device::in_launch, FakeRunner::Device::behind_the_host),
                         device_name);

}  // namespace
}  // namespace sluice
