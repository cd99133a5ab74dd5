// Random traffic through the simulator, with everything that clients do (leave, wait too long, read slowly) and
// operators (reload), under every batching policy, with the prefix cache and without, from generous pools to
// ones that one sequence fills. What must hold is checked after every plan and every turn; more than 20,000
// requests in all. Whether what the cache holds is right, is for scheduler_traffic_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sched/simulator/random.h"
#include "sched/simulator/simulator.h"

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr int kRequests = 60, kSeeds = 60;  // of each policy with the cache, and without

// What is checked while it runs.
class Watch {
 public:
  explicit Watch(const SimulationSetup& setup) : setup_(setup) {}

  SimulationHooks hooks() {
    SimulationHooks hooks;
    hooks.planned = [this](const Scheduler& s, const StepPlan& plan, TimeNs now) { planned(s, plan, now); };
    hooks.turned = [this](const Scheduler& s, TimeNs now) { turned(s, now); };
    return hooks;
  }
  // Turns at whose end somebody waits and 98 % of the blocks are in use.
  int64_t full() const { return full_; }

 private:
  void planned(const Scheduler& scheduler, const StepPlan& plan, TimeNs now) {
    ASSERT_GE(now, now_) << "the clock went backwards";
    now_ = now;
    int tokens = 0;
    std::vector<const Sequence*> seen;
    for (const PlanEntry& e : plan.entries) {
      const Sequence& s = *e.sequence;
      ASSERT_FALSE(s.ended());
      ASSERT_GT(e.count, 0);
      ASSERT_EQ(e.first + e.count, s.planned);
      ASSERT_FALSE(s.needs_host_state && e.samples && s.samples_in_flight > 1);
      seen.push_back(&s);
      tokens += e.count;
      check_places(e);
      check_order(s);
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "a sequence is twice in one step";
    ASSERT_EQ(tokens, plan.tokens);
    ASSERT_LE(tokens, setup_.policy.step_tokens);
    ASSERT_LE(int(scheduler.running().size()), setup_.policy.max_running);
    check_mixed(scheduler.policy(), plan);
    if (setup_.changes.empty()) check_batch(scheduler, plan);
    for (const Sequence* s : scheduler.running()) ASSERT_LE(s->forced_preemptions, Sequence::kMostPreemptions);
  }

  // Prompts keep within the bound that is set for them beside those who generate; one that only resumes in this
  // step, and finds all but a token in the cache, is none of these.
  void check_mixed(const Policy& policy, const StepPlan& plan) const {
    int prompt_rows = 0;
    bool generates = false;
    for (const PlanEntry& e : plan.entries) {
      prompt_rows += e.count > 1 ? e.count : 0;
      generates |= e.count == 1 && e.samples && e.first >= e.sequence->prompt_tokens &&
                   std::find(ran_.begin(), ran_.end(), e.sequence) != ran_.end();
    }
    if (generates && policy.mixed_prompt_tokens) {
      ASSERT_LE(prompt_rows, policy.mixed_prompt_tokens);
    }
  }

  void check_batch(const Scheduler& scheduler, const StepPlan& plan) const {
    const Batching& batching = setup_.policy.batching;
    if (batching.kind == BatchingKind::continuous) {
      ASSERT_EQ(plan.batch, 0);
      return;
    }
    const int most = batching.kind == BatchingKind::serial ? 1 : batching.window.max_batch;
    ASSERT_LE(plan.batch, most);
    ASSERT_LE(int(scheduler.running().size()), most) << "somebody joined a batch";
  }

  // Every position that a row of this step sees has a block.
  void check_places(const PlanEntry& e) const {
    const KvLayout& layout = setup_.layout;
    for (int g = 0; g < layout.groups(); ++g) {
      const int window = layout.windows[size_t(g)];
      const int from = window ? std::max(0, e.first - window + 1) : 0;
      const auto row = e.sequence->table->row(g);
      for (int block = from / layout.block_tokens; block * layout.block_tokens < e.first + e.count; ++block)
        ASSERT_NE(row[size_t(block)], kNoBlock);
    }
  }

  // Requests of one lane and tenant are admitted for the first time in order of arrival.
  void check_order(const Sequence& s) {
    if (s.admitted_at != now_ || s.preemptions > 0 || s.generated() > 0 || s.computed > s.cached_tokens) return;
    uint64_t& last = last_admitted_[{s.request.lane, s.request.tenant}];
    ASSERT_GE(s.order, last) << "overtaken inside its lane and tenant";
    last = s.order;
  }

  // A block has as many owners as tables hold it, and tables share one only where their tokens are the same.
  void turned(const Scheduler& scheduler, TimeNs now) {
    ASSERT_GE(now, now_);
    const BlockPool& pool = scheduler.blocks();
    const int block_tokens = setup_.layout.block_tokens;
    holder_.assign(size_t(pool.total()), {});
    ran_.assign(scheduler.running().begin(), scheduler.running().end());
    int distinct = 0;
    for (const Sequence* s : scheduler.running()) {
      ASSERT_NE(s->table, nullptr);
      for (int g = 0; g < setup_.layout.groups(); ++g) {
        const auto row = s->table->row(g);
        for (size_t i = 0; i < row.size(); ++i) {
          if (row[i] == kNoBlock) continue;
          Holder& holder = holder_[size_t(row[i])];
          distinct += holder.tables == 0;
          if (holder.tables++ == 0)
            holder.sequence = s, holder.place = i;
          else
            ASSERT_TRUE(may_share(*s, *holder.sequence, (i + 1) * size_t(block_tokens)) && i == holder.place);
          ASSERT_GE(pool.owners(row[i]), holder.tables) << "freed while a table holds it";
        }
      }
    }
    ASSERT_GE(pool.used(), distinct);
    ASSERT_LE(distinct, pool.total());
    ASSERT_TRUE(setup_.policy.prefix_cache || pool.cached() == 0);
    full_ += !scheduler.waiting().empty() && pool.used() * 100 >= pool.total() * 98;
  }
  static bool may_share(const Sequence& a, const Sequence& b, size_t tokens) {
    return a.request.cache_salt == b.request.cache_salt && a.ids.size() >= tokens && b.ids.size() >= tokens &&
           std::equal(a.ids.begin(), a.ids.begin() + ptrdiff_t(tokens), b.ids.begin());
  }

  struct Holder {
    const Sequence* sequence = nullptr;
    size_t place = 0;
    int tables = 0;
  };
  const SimulationSetup& setup_;
  TimeNs now_ = 0;
  std::map<std::pair<Lane, uint32_t>, uint64_t> last_admitted_;
  std::vector<Holder> holder_;        // [blocks]
  std::vector<const Sequence*> ran_;  // at the end of the turn before
  int64_t full_ = 0;
};

// All that may change while it runs.
void choose_live(Policy& policy, Random& random) {
  policy.mixed_prompt_tokens = random.chance(0.5) ? int(random.between(1, 40)) : 0;
  policy.target_itl_ns = random.chance(0.3) ? random.between(1, 20) * kMs : 0;
  for (int& weight : policy.lane_weights) weight = int(random.between(1, random.chance(0.2) ? 1000 : 20));
  policy.batching.window = {.max_batch = int(random.between(1, policy.max_running)),
                            .max_wait_ns = random.between(0, 60) * kMs,
                            .idle_ns = random.between(0, 30) * kMs,
                            .span_ns = random.chance(0.5) ? random.between(60, 200) * kMs : 0};
}

SimulationSetup random_setup(BatchingKind kind, bool prefix_cache, Random& random) {
  SimulationSetup setup;
  Policy& policy = setup.policy;
  policy.max_running = int(random.between(1, 12));
  policy.step_tokens = policy.max_running + int(random.between(1, 80));
  policy.prefix_cache = prefix_cache;
  policy.batching.kind = kind;
  choose_live(policy, random);
  setup.max_requests = policy.max_queue = int(random.between(4, 60));
  for (TimeNs at = 0; random.chance(0.4);) {
    setup.changes.push_back({at += random.between(1, 200) * kMs, policy});
    setup.changes.back().policy.batching.kind = BatchingKind(random.between(0, 2));
    choose_live(setup.changes.back().policy, random);
  }
  KvLayout& layout = setup.layout;
  layout = {.block_tokens = 4, .windows = {0}, .max_length = 96, .max_step_tokens = policy.step_tokens};
  if (random.chance(0.5)) layout.windows = random.chance(0.5) ? std::vector{0, 10} : std::vector{7, 0, 30};
  // From what one sequence needs to plenty.
  setup.blocks = layout.peak_blocks(layout.max_length) + int(random.between(0, random.chance(0.5) ? 16 : 400));
  FittedCost cost;
  cost.coefficient[0] = 1e-3 * random.uniform(), cost.coefficient[1] = 1e-4 * random.uniform();
  cost.coefficient[5] = 1e-6 * random.uniform();
  cost.spread = {0.5f, 1.f, 4.f};
  setup.cost = cost;
  setup.seed = random.next();
  return setup;
}

Trace random_trace(const SimulationSetup& setup, Random& random) {
  TraceWish wish;
  wish.requests = kRequests;
  wish.seed = random.next();
  wish.lanes = {1, 1, 1};
  wish.tenants = int(random.between(1, 5));
  wish.shared_prefix = random.chance(0.3) ? int(random.between(1, 40)) : 0;
  wish.input = {LengthLaw::Kind::lognormal, 1, setup.layout.max_length - 1, 15, 1};
  wish.output = {LengthLaw::Kind::uniform, 1, setup.layout.max_length};
  wish.arrivals = {.kind = Arrivals::Kind(random.between(0, 2)),
                   .rate = 20 + 300 * random.uniform(),
                   .burst_rate = 2000,
                   .on_s = 0.02,
                   .off_s = 0.2,
                   .concurrency = int(random.between(1, 20))};
  Trace trace = make_trace(wish);
  for (TracedRequest& r : trace.requests) {
    r.output = std::min(r.output, setup.layout.max_length - r.input);
    if (random.chance(0.1)) r.timeout_ns = random.between(0, 300) * kMs + 1;
    if (random.chance(0.1)) r.cancel_ns = random.between(0, 200) * kMs + 1;
    if (random.chance(0.1)) r.reads_per_s = double(random.between(50, 400));
    r.host_state = random.chance(0.2);
    if (random.chance(0.1)) r.mask_ns = random.between(0, 8) * kMs + 1;
  }
  return trace;
}

class InvariantsUnder : public testing::TestWithParam<std::tuple<BatchingKind, bool>> {};

TEST_P(InvariantsUnder, RandomTraffic) {
  const auto [kind, prefix_cache] = GetParam();
  int64_t preemptions = 0, completed = 0, gave_up = 0, refused = 0, full = 0, cached = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Random random(uint64_t(seed), uint64_t(kind) + 100 + 10 * prefix_cache);
    const SimulationSetup setup = random_setup(kind, prefix_cache, random);
    const Trace trace = random_trace(setup, random);
    Watch watch(setup);
    const SimulationResult result = simulate(setup, trace, watch.hooks());
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    if (setup.changes.empty()) preemptions += result.preemptions;
    full += watch.full();
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      const SimulatedRequest& r = result.requests[i];
      ASSERT_TRUE(r.refused || r.finish != FinishReason::none)
          << "seed " << seed << ": request " << i << " never ended";
      ASSERT_LE(r.tokens, trace.requests[i].output);
      ASSERT_TRUE(r.finish != FinishReason::length || r.tokens == trace.requests[i].output);
      ASSERT_GE(r.ended, r.sent);
      ASSERT_TRUE(r.tokens == 0 || (r.first_token > r.sent && r.first_token <= r.ended));
      completed += r.finish == FinishReason::length;
      gave_up += r.finish == FinishReason::deadline || r.finish == FinishReason::cancelled;
      refused += r.refused;
      cached += r.cached_tokens;
    }
  }
  // The traffic has met what it is there for.
  EXPECT_GT(completed, kSeeds * kRequests / 2);
  EXPECT_GT(gave_up, 100);
  EXPECT_GT(refused, 10);
  EXPECT_GT(full, 100) << "the pool was never full";
  EXPECT_EQ(preemptions > 0, kind != BatchingKind::serial);
  EXPECT_EQ(cached > 0, prefix_cache);
}
INSTANTIATE_TEST_SUITE_P(Policies, InvariantsUnder,
                         testing::Combine(testing::Values(BatchingKind::continuous, BatchingKind::windowed,
                                                          BatchingKind::serial),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(batching_name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_with_prefix_cache" : "");
                         });

}  // namespace
}  // namespace sluice
