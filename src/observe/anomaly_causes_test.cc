// The join: recorded steps around an odd token, and the root that they give.
#include "observe/anomaly_causes.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace sluice {
namespace {

constexpr TimeNs kMs = 1'000'000;

// Steps of 4 ms, one token each, of which the fourth makes the token in question: from 12 ms on.
std::vector<StepRecord> steps() {
  std::vector<StepRecord> out;
  for (int i = 1; i <= 5; ++i) {
    StepRecord r;
    r.step = i;
    r.planned_at = TimeNs(i - 1) * 4 * kMs - kMs / 2;
    r.plan_ns = r.build_ns = 20'000;
    r.execute_at = TimeNs(i - 1) * 4 * kMs, r.execute_ns = 4 * kMs;
    r.ended_unix_ns = 1'000'000 * kMs + TimeNs(i) * 4 * kMs;
    r.tokens = r.sequences = r.one_token_sequences = 1;
    r.flops = 1e9;
    r.blocks_total = 100, r.blocks_used = 10;
    out.push_back(r);
  }
  return out;
}

struct Case {
  const char* name;
  AnomalyCause cause;
  std::function<void(std::vector<StepRecord>&, OddFacts&)> change;  // of a token that is 100 ms late
};

// All that comes after step 3 comes 100 ms later, as it does where something takes that long.
void late(std::vector<StepRecord>& s, OddFacts& f) {
  f.to += 100 * kMs, f.value += 100;
  for (size_t i = 3; i < s.size(); ++i) s[i].ended_unix_ns += 100 * kMs;
}
void late_end(std::vector<StepRecord>& s, OddFacts& f) {  // step 4 itself takes long
  late(s, f);
  s[3].execute_ns += 100 * kMs;
  s[4].execute_at += 100 * kMs;
}
void late_start(std::vector<StepRecord>& s, OddFacts& f) {  // it begins late
  late(s, f);
  for (size_t i = 3; i < s.size(); ++i) s[i].execute_at += 100 * kMs;
  s[3].idle_ns = s[3].gap_ns = 100 * kMs;
}

const Case kCases[] = {
    {"SlowStep", AnomalyCause::slow_step, [](auto& s, auto& f) { late_end(s, f); }},
    {"GraphMiss", AnomalyCause::graph_miss,
     [](auto& s, auto& f) { late_end(s, f), s[3].graph = GraphUse::miss; }},
    {"LongPrompt", AnomalyCause::long_prompt,
     [](auto& s, auto& f) {
       late_end(s, f), s[3].longest_prompt = 480, s[3].longest_prompt_tenant = 2, s[3].flops = 4e11;
     }},
    {"AShortPromptExplainsNothing", AnomalyCause::slow_step,
     [](auto& s, auto& f) { late_end(s, f), s[3].longest_prompt = 2, s[3].flops = 1.5e9; }},
    {"BatchReshape", AnomalyCause::batch_reshape,
     [](auto& s, auto& f) { late_end(s, f), s[3].sequences = 40; }},
    {"KvMovement", AnomalyCause::kv_movement, [](auto& s, auto& f) { late_end(s, f), s[3].moved = 64; }},
    {"HostBlocks", AnomalyCause::kv_movement, [](auto& s, auto& f) { late_end(s, f), s[3].host_blocks = 64; }},
    {"AThreadOfTheTeamHasNoCore", AnomalyCause::run_queue,
     [](auto& s, auto& f) { late_end(s, f), s[3].launch_off_cpu_ns = 98 * kMs; }},
    {"OnAMachineThatIsAlwaysShared", AnomalyCause::slow_step,
     [](auto& s, auto& f) {
       late_end(s, f);
       s[2].launch_off_cpu_ns = 2 * kMs, s[3].launch_off_cpu_ns = 52 * kMs;
     }},
    {"TheEngineIsBusy", AnomalyCause::engine_stall,
     [](auto& s, auto& f) { late_start(s, f), s[3].plan_ns = 100 * kMs; }},
    {"TheEngineIsBusyWithTheNextStep", AnomalyCause::engine_stall,
     [](auto& s, auto& f) { late(s, f), s[4].planned_at = f.from + kMs, s[4].plan_ns = 102 * kMs; }},
    {"TheEngineHasNoCore", AnomalyCause::run_queue,
     [](auto& s, auto& f) { late_start(s, f), s[3].plan_ns = 100 * kMs, s[3].engine_off_cpu_ns = 99 * kMs; }},
    {"TheEngineAllocates", AnomalyCause::allocator,
     [](auto& s, auto& f) { late_start(s, f), s[3].plan_ns = 100 * kMs, s[3].allocations = 5'000'000; }},
    {"TheExecutorIsWokenLate", AnomalyCause::run_queue, [](auto& s, auto& f) { late_start(s, f); }},
    {"TheEngineIsWokenLate", AnomalyCause::run_queue, [](auto& s, auto& f) { late(s, f); }},
    {"ClockJump", AnomalyCause::clock_jump,
     [](auto& s, auto& f) { late_start(s, f), s[3].plan_ns = 100 * kMs, s[3].ended_unix_ns -= 100 * kMs; }},
    {"Preemption", AnomalyCause::preemption, [](auto& s, auto& f) { late(s, f), f.preempted = true; }},
    {"SlowReader", AnomalyCause::slow_reader, [](auto& s, auto& f) { late(s, f), f.paused = true; }},
    {"NothingIsKnown", AnomalyCause::unknown, [](auto& s, auto& f) { late(s, f), s.clear(); }},
};

class SlowTokens : public testing::TestWithParam<Case> {};

TEST_P(SlowTokens, HaveThisRoot) {
  std::vector<StepRecord> recorded = steps();
  OddFacts facts;
  facts.from = 12 * kMs, facts.to = 16 * kMs, facts.value = facts.usual = 4;
  facts.step_before = 3, facts.step = 4;
  GetParam().change(recorded, facts);
  facts.steps = std::span(recorded).subspan(std::min<size_t>(2, recorded.size()));
  const auto chain = explain(facts);
  ASSERT_FALSE(chain.empty());
  EXPECT_EQ(cause_name(chain[0].cause), cause_name(GetParam().cause)) << chain[0].text;
  EXPECT_FALSE(chain[0].text.empty());
  EXPECT_TRUE(is_cause_of(chain[0].cause, facts.kind));
}
INSTANTIATE_TEST_SUITE_P(Recorded, SlowTokens, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(SlowToken, AChainNamesWhatElseTookItsShare) {
  std::vector<StepRecord> recorded = steps();
  OddFacts facts;
  facts.from = 12 * kMs, facts.to = 16 * kMs, facts.value = facts.usual = 4;
  facts.step_before = 3, facts.step = 4;
  late_end(recorded, facts);
  recorded[3].longest_prompt = 480, recorded[3].flops = 4e11, recorded[3].launch_off_cpu_ns = 30 * kMs;
  facts.steps = std::span(recorded).subspan(2);
  const auto chain = explain(facts);
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[0].cause, AnomalyCause::long_prompt);
  EXPECT_NEAR(chain[0].share, 0.7, 0.05);
  EXPECT_EQ(chain[1].cause, AnomalyCause::run_queue);
  EXPECT_NEAR(chain[1].share, 0.3, 0.05);
}

AnomalyCause root(OddFacts facts, std::vector<StepRecord> recorded = {}) {
  facts.steps = recorded;
  return explain(facts)[0].cause;
}

TEST(OddText, IsTheSamplersTheClientsOrTheModels) {
  OddFacts f;
  f.kind = AnomalyKind::repetition;
  f.sampler.temperature = 0.7f;
  EXPECT_EQ(root(f), AnomalyCause::model);
  f.sampler.temperature = 0;
  EXPECT_EQ(root(f), AnomalyCause::sampler_setting) << "greedy";
  f.sampler.penalised = true;
  EXPECT_EQ(root(f), AnomalyCause::model);
  f.unlikely = true;
  EXPECT_EQ(root(f), AnomalyCause::sampler);
  f.broken = true;
  EXPECT_EQ(root(f), AnomalyCause::broken_op);
  f = {};
  f.kind = AnomalyKind::control_text;
  f.sampler.biased = true;
  EXPECT_EQ(root(f), AnomalyCause::sampler_setting);
  f.sampler = {.temperature = 2};
  EXPECT_EQ(root(f), AnomalyCause::sampler_setting);
}

TEST(BrokenLogits, AreTracedToTheFirstOp) {
  std::vector<StepRecord> recorded = steps();
  recorded[3].broken = {"down", 7};
  OddFacts f;
  f.kind = AnomalyKind::nan_logits, f.step = 4;
  f.steps = recorded;
  EXPECT_NE(explain(f)[0].text.find("down of layer 7"), std::string::npos);
}

TEST(LittleReuse, IsAPreemptionOrAnEvictionOrNothing) {
  std::vector<StepRecord> recorded = steps();
  OddFacts f;
  f.kind = AnomalyKind::low_reuse, f.usual = 0.9;
  EXPECT_EQ(root(f, recorded), AnomalyCause::unknown);
  recorded[2].evicted = 30;
  EXPECT_EQ(root(f, recorded), AnomalyCause::kv_eviction);
  f.preempted = true;
  recorded[2].preempted = 1, recorded[2].blocks_used = 99;
  EXPECT_EQ(root(f, recorded), AnomalyCause::preemption);
  f.steps = recorded;
  EXPECT_EQ(explain(f).back().cause, AnomalyCause::kv_full);
}

TEST(AnomalyNames, AreAllDifferent) {
  std::set<std::string_view> names;
  for (int i = 0; i < kAnomalyKinds; ++i) names.insert(anomaly_name(AnomalyKind(i)));
  EXPECT_EQ(names.size(), size_t(kAnomalyKinds));
  names.clear();
  for (int i = 0; i < kAnomalyCauses; ++i) names.insert(cause_name(AnomalyCause(i)));
  EXPECT_EQ(names.size(), size_t(kAnomalyCauses));
}

}  // namespace
}  // namespace sluice
