// Random traffic through a fake executor, two steps in flight, with little memory, under every batching policy:
// every request ends, nothing leaks, no step exceeds its budget, nobody is overtaken, nobody joins a batch;
// with the prefix cache, what is found there is what would have been computed, and nobody writes to what others
// read; with tiers, what was moved is found where it was moved to; with memory outside the pool and files, what
// comes back from there is what went, or it is computed again. The invariants are checked at every step.
#include "sched/testing/traffic_simulation.h"

namespace sluice {
namespace {

// Windows with and without each of their triggers.
Batching batching_of(BatchingKind kind, uint32_t seed, int max_running) {
  Batching b{kind};
  b.window.max_batch = int(1 + seed % uint32_t(max_running));
  b.window.max_wait_ns = seed % 7;
  b.window.idle_ns = seed % 4;
  b.window.span_ns = seed % 5 ? TimeNs(seed % 7 + seed % 11) : 0;
  return b;
}

class TrafficUnderPolicy : public testing::TestWithParam<BatchingKind> {};

TEST_P(TrafficUnderPolicy, EveryRequestEndsAndNothingLeaks) {
  int preemptions = 0, batches = 0;
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    Traffic t;
    t.seed = seed;
    t.policy = {
        .max_running = int(1 + seed % 9), .step_tokens = int(9 + seed % 50), .max_queue = int(2 + seed % 30)};
    t.policy.batching = batching_of(GetParam(), seed, t.policy.max_running);
    t.blocks = int(seed % 16);
    if (seed % 3 == 1) t.windows = {0, 10};
    if (seed % 3 == 2) t.windows = {7, 0, 30};
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    preemptions += run.preemptions();
    batches += run.batches();
  }
  if (GetParam() == BatchingKind::serial) {
    EXPECT_EQ(preemptions, 0) << "one alone always fits";
  } else {
    EXPECT_GT(preemptions, GetParam() == BatchingKind::continuous ? 100 : 10)
        << "the pool was never under pressure";
  }
  EXPECT_EQ(batches > 0, GetParam() != BatchingKind::continuous);
}
INSTANTIATE_TEST_SUITE_P(Policies, TrafficUnderPolicy,
                         testing::Values(BatchingKind::continuous, BatchingKind::windowed,
                                         BatchingKind::serial),
                         [](const auto& info) { return std::string(batching_name(info.param)); });

// Sequences that all grow to a quarter of the pool, two dozen at a time: it is at 98 % again and again, every
// one ends, nobody gives way more often than allowed (checked at each step), and little is computed twice.
TEST(SchedulerTraffic, AtTheEdgeOfThePoolEveryRequestEnds) {
  double full = 0;
  int64_t computed = 0, needed = 0;
  int preemptions = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Traffic t;
    t.seed = seed;
    t.requests = 120;
    t.grow = true;
    t.policy = {.max_running = 24, .step_tokens = 48, .max_queue = 128, .min_progress = 4};
    t.blocks = 72;
    t.lanes = seed % 2 ? 1 : kLanes;
    t.cancel_share = t.pause_share = t.deadline_share = 0;
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    if (t.lanes == 1) full += run.full_share() / 10;
    computed += run.computed_tokens();
    needed += run.needed_tokens();
    preemptions += run.preemptions();
  }
  EXPECT_GT(full, 0.15);
  EXPECT_GT(preemptions, 100);
  EXPECT_LT(preemptions, 20 * 120 / 2);
  EXPECT_LT(computed, needed * 13 / 10);
}

// Requests that begin as others did, or go on where others ended, in little memory.
TEST(SchedulerTraffic, PrefixesAreFoundAndRight) {
  int64_t cached = 0, resumed = 0, preemptions = 0, copies = 0;
  uint64_t evicted = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    Traffic t;
    t.seed = seed;
    t.policy = {
        .max_running = int(1 + seed % 9), .step_tokens = int(9 + seed % 50), .max_queue = int(2 + seed % 30)};
    t.policy.batching =
        batching_of(seed % 4 ? BatchingKind::continuous : BatchingKind::windowed, seed, t.policy.max_running);
    t.policy.prefix_cache = true;
    t.shared_prompts = true;
    t.salts = int(1 + seed % 2);
    t.blocks = int(seed % 60);
    if (seed % 4 == 1) t.windows = {0, 10};
    if (seed % 4 == 2) t.windows = {7, 0, 30};
    if (seed % 8 == 3) t.windows = {13};
    if (seed % 8 == 7) t.windows = {0, 0, 1};
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    cached += run.cached_tokens(), resumed += run.resumed_tokens(), copies += run.copies();
    preemptions += run.preemptions(), evicted += run.evicted();
  }
  EXPECT_GT(cached, 10000);
  EXPECT_GT(resumed, 1000);
  EXPECT_GT(copies, 1000);
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(evicted, 10000u);
}

constexpr KvTiering kTierings[] = {{.stages = {{{KvTier::int8, 0}}}, .count = 1},
                                   {.stages = {{{KvTier::int4, 0}}}, .count = 1},
                                   {.stages = {{{KvTier::int8, 8}, {KvTier::int4, 30}}}, .count = 2},
                                   {.stages = {{{KvTier::fp8, 0}}}, .count = 1}};

// Blocks are converted as they age, shared, evicted and restored meanwhile; at the edge of the pool those of
// small tiers are moved together. Everybody ends, and reads what was written.
TEST(SchedulerTraffic, ConvertedBlocksAreFoundAndRight) {
  int to[kKvTiers] = {}, gaps_closed = 0, moves_alone = 0;
  int64_t cached = 0, preemptions = 0, copies = 0;
  uint64_t evicted = 0;
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    Traffic t;
    t.seed = seed;
    t.tiering = kTierings[seed % 4];
    t.policy = {
        .max_running = int(1 + seed % 9), .step_tokens = int(9 + seed % 50), .max_queue = int(2 + seed % 30)};
    t.policy.batching =
        batching_of(seed % 5 ? BatchingKind::continuous : BatchingKind::windowed, seed, t.policy.max_running);
    t.policy.prefix_cache = seed % 3 > 0;
    t.shared_prompts = seed % 3 > 0;
    t.grow = seed % 7 == 0;
    t.blocks = int(seed % 40);
    t.max_length = seed % 11 == 0 ? 300 : 96;
    if (seed % 4 == 1) t.windows = {0, 10};
    if (seed % 5 == 2) t.windows = {7, 0, 30};
    if (seed % 8 == 3) t.windows = {13};
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    for (int tier = 0; tier < kKvTiers; ++tier) to[tier] += run.moves_to(KvTier(tier));
    gaps_closed += run.gaps_closed(), moves_alone += run.moves_alone();
    cached += run.cached_tokens(), preemptions += run.preemptions(), copies += run.copies();
    evicted += run.evicted();
  }
  EXPECT_EQ(to[int(KvTier::full)], 0);
  for (const KvTier tier : {KvTier::int8, KvTier::fp8, KvTier::int4}) EXPECT_GT(to[int(tier)], 2000);
  EXPECT_GT(gaps_closed, 100);
  EXPECT_GT(moves_alone, 1);
  EXPECT_GT(cached, 10000);
  EXPECT_GT(copies, 1000);
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(evicted, 1000u);
}

// What the pool gives up is kept in memory outside it, and in files that fail and rot; it comes back where it
// is wanted, in the tier it went in, while others run, are preempted and cancelled.
TEST(SchedulerTraffic, BlocksComeBackFromOutsideThePool) {
  int saved = 0, restored = 0, read = 0, lost = 0;
  int64_t preemptions = 0;
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    Traffic t;
    t.seed = seed;
    t.requests = 80;
    if (seed % 3 == 0) t.tiering = kTierings[seed % 4];
    t.policy = {
        .max_running = int(1 + seed % 9), .step_tokens = int(9 + seed % 50), .max_queue = int(2 + seed % 30)};
    t.policy.batching =
        batching_of(seed % 5 ? BatchingKind::continuous : BatchingKind::windowed, seed, t.policy.max_running);
    t.policy.prefix_cache = true;
    t.shared_prompts = true;
    t.salts = int(1 + seed % 2);
    t.blocks = int(seed % 24);
    t.host_slots = int(1 + seed % 7 * 10);
    t.disk_blocks = seed % 2 ? int(4 + seed % 100) : 0;
    if (seed % 10 < 5) t.corrupt_share = 0.1, t.failed_share = 0.1;
    if (seed % 4 == 1) t.windows = {0, 10};
    if (seed % 5 == 2) t.windows = {7, 0, 30};
    if (seed % 8 == 3) t.windows = {13};
    if (seed % 8 == 7) t.windows = {0, 0, 1};
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    saved += run.saved(), restored += run.restored(), read += run.read_from_files(), lost += run.lost();
    preemptions += run.preemptions();
  }
  EXPECT_GT(saved, 10000);
  EXPECT_GT(restored, 3000);
  EXPECT_GT(read, 500);
  EXPECT_GT(lost, 50);
  EXPECT_GT(preemptions, 50);
}

// Reserved at admission, whatever is used of it.
TEST(SchedulerTraffic, WholeContextsAreTakenAndGivenBack) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    Traffic t;
    t.seed = seed;
    t.whole_context = true;
    t.lanes = 1;
    t.pause_share = 0;
    t.policy = {.max_running = int(1 + seed % 5), .step_tokens = 32, .max_queue = 64};
    t.policy.prefix_cache = seed % 2;
    t.shared_prompts = seed % 2;
    t.blocks = int(seed * 3);
    if (seed % 3 == 1) t.windows = {0, 10};
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    EXPECT_EQ(run.preemptions(), 0) << "who has started has all it will need";
  }
}

// Everything arrives at once, memory for about two; all must get through without computing the same again and
// again.
TEST(SchedulerTraffic, PressureDoesNotThrash) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Traffic t;
    t.seed = seed;
    t.requests = 40;
    t.policy = {.max_running = 16, .step_tokens = 32, .max_queue = 64};
    t.blocks = 24;
    t.cancel_share = t.pause_share = t.deadline_share = 0;
    Simulation run(t);
    run.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    EXPECT_LT(run.computed_tokens(), run.needed_tokens() * 2) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice
