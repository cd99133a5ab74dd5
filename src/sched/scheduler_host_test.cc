// Prefixes that leave the pool for host memory while another prompt takes their place.
#include <gtest/gtest.h>

#include <numeric>

#include "sched/scheduler.h"

namespace sluice {
namespace {

constexpr int kBlockTokens = 4, kBlocks = 16, kPrompt = 60;  // tokens: one prompt is about what the pool holds

class SchedulerHostTest : public testing::Test {
 protected:
  // One block is as much as is copied in the time that a step of few rows gives to it.
  static constexpr size_t kSlotBytes = size_t(TransferRates::kFirstGuess * 0.004);

  Sequence prompt(int32_t first) const {
    Request r;
    r.prompt.resize(kPrompt);
    std::iota(r.prompt.begin(), r.prompt.end(), first);
    r.max_tokens = 1;
    Sequence s(std::move(r));
    s.name_blocks(kBlockTokens);
    return s;
  }
  // To its end; returns how many steps that took.
  int compute(Sequence& s) {
    EXPECT_TRUE(scheduler.add(&s));
    int steps = 0;
    for (; !s.gone() && steps < 100; ++steps) step();
    return steps;
  }
  void step() {
    StepPlan plan;
    plan.reserve(4, 8, layout, 64);
    scheduler.plan(1, plan);
    scheduler.land_moves(plan, 1);
    for (const PlanEntry& e : plan.entries)
      scheduler.land(e, e.samples ? 7 : -1, e.samples ? FinishReason::length : FinishReason::none, 1);
  }

  const KvLayout layout{.block_tokens = kBlockTokens, .windows = {0}, .max_length = 64, .max_step_tokens = 16};
  HostTier host{{.slots = 64, .slot_bytes = kSlotBytes}};
  Scheduler scheduler{{.max_running = 4, .step_tokens = 16, .prefix_cache = true}, layout, kBlocks, &host};
};

TEST_F(SchedulerHostTest, CopiesKeepAheadOfAPromptThatTakesThePool) {
  Sequence wanted = prompt(0), other = prompt(1000), again = prompt(0);
  compute(wanted);
  compute(other);  // four blocks a step
  compute(again);
  // The first step of `other` took four blocks of the end before any was copied.
  EXPECT_GE(again.cached_tokens, kPrompt - 5 * kBlockTokens);
  EXPECT_GT(again.host_tokens, 0);
}

}  // namespace
}  // namespace sluice
