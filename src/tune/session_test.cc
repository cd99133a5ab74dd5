// The whole course on a rig that measures nothing: servers of known speed, a clock that is moved.
#include "tune/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tune/page.h"
#include "tune/report.h"

namespace sluice::tune {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Answers come evenly, `qps` of them, each with ten tokens and 8/qps s old.
Run steady(const Configuration& configuration, double qps, double load_s) {
  Run run;
  run.configuration = configuration, run.concurrency = 8, run.load_s = load_s, run.ready_s = 0.5;
  run.load = "concurrency 8", run.device = "2 threads";
  run.steps = 100, run.steps_of_one = configuration.get("scheduler.policy") == "serial" ? 100 : 2;
  run.batches = {{1, 50}, {8, 50}};
  for (int i = 1; i < int(qps * load_s); ++i) {
    const double ended = i / qps * (1 + 0.002 * (i % 3));
    run.requests.push_back({std::max(0.0, ended - 8 / qps), ended - 0.001, ended, 10, Request::End::completed});
  }
  run.between_tokens_ms = {1, 2, 3};
  run.diagnosis = run.steps_of_one == 100
                      ? R"({"findings":[{"cause":"batch-policy-mismatch","lost":0.8,"text":"x"}]})"
                      : R"({"findings":[]})";
  return run;
}

class FakeRig : public Rig {
 public:
  Run measure(const Configuration& c, double seconds) override {
    measured.push_back(c);
    clock += seconds + 1;
    if (int(measured.size()) == interrupt_at) broken_off = true;
    if (refuses(c)) {
      Run run;
      run.configuration = c, run.failure = "the server does not start: no memory";
      return run;
    }
    double qps = 10;
    if (c.get("scheduler.policy") == "windowed") qps *= 3;
    if (c.get("scheduler.policy") == "continuous") qps *= 4;
    if (c.get("kv.prefix_cache") == "true") qps *= 0.5;  // a step that does harm
    if (c.get("engine.step_tokens") == "1024") qps *= 1.5;
    return steady(c, qps, seconds);
  }
  std::vector<LongContext> long_contexts(const Configuration&, double) override {
    clock += 2;
    return {{4096, 100, 50, 0.5}};
  }
  std::vector<Variant> candidates(const Run&) override {
    return {{"engine.step_tokens=1024", {{"engine.step_tokens", "1024"}}, {}, ""}};
  }
  double spent_s() const override { return clock; }
  bool interrupted() const override { return broken_off; }
  void say(const std::string& line) override { said.push_back(line); }

  std::function<bool(const Configuration&)> refuses = [](const Configuration&) { return false; };
  std::vector<Configuration> measured;
  std::vector<std::string> said;
  double clock = 0;
  int interrupt_at = -1;
  bool broken_off = false;
};

SessionWish wish(double budget_s, const std::string& order = "") {
  const Place place{.card = false, .cores = 2, .context = 2048, .dummy = false, .weight_bits = 4};
  return {.start = collapsed_start("m.gguf", place),
          .steps = plan_steps({.exact = true, .concurrency = 8, .order = *parse_order(order)}, "m.gguf", place),
          .slo = {},
          .budget_s = budget_s,
          .long_contexts = true};
}

const StepResult& step(const Session& s, std::string_view name) {
  for (const StepResult& r : s.steps)
    if (r.name == name) return r;
  throw std::out_of_range(std::string(name));
}

TEST(Session, TakesTheStepsThatHelpAndNotTheOthers) {
  FakeRig rig;
  const Session s = tune(wish(600), rig);
  ASSERT_EQ(s.steps.size(), 8u);  // the start and seven
  EXPECT_TRUE(step(s, "batching").kept);
  EXPECT_FALSE(step(s, "kv").kept);
  EXPECT_THAT(step(s, "kv").reason, HasSubstr("slower"));
  EXPECT_TRUE(step(s, "scheduler").kept);
  EXPECT_FALSE(step(s, "weights").measured);
  EXPECT_EQ(s.final().run.configuration.get("scheduler.policy"), "continuous");
  EXPECT_EQ(s.final().run.configuration.get("kv.prefix_cache"), "false");
  EXPECT_EQ(s.final().run.configuration.get("engine.step_tokens"), "1024");
  EXPECT_NEAR(s.final().figures.qps.mean, 60, 1);
  EXPECT_EQ(s.long_after.size(), 1u);
  EXPECT_TRUE(s.left_out.empty());
}

TEST(Session, SaysWhatTheDoctorNamedBeforeTheStepThatRemovesIt) {
  FakeRig rig;
  const Session s = tune(wish(600), rig);
  EXPECT_EQ(step(s, "batching").named_before, "batch-policy-mismatch");
  EXPECT_EQ(step(s, "scheduler").named_before, "");
}

TEST(Session, KeepsToItsBudget) {
  for (const double budget : {20.0, 60.0, 200.0, 900.0}) {
    FakeRig rig;
    const Session s = tune(wish(budget), rig);
    EXPECT_LT(rig.clock, budget * 1.1 + 3) << budget;
    EXPECT_EQ(s.steps.size(), 8u);
  }
}

TEST(Session, OfATraceEveryMeasurementPlaysTheSamePart) {
  FakeRig rig;
  SessionWish w = wish(300);
  w.equal_loads = true;
  const Session s = tune(w, rig);
  for (const StepResult& r : s.steps)
    for (const Tried& t : r.tried) EXPECT_EQ(t.run.load_s, s.start().run.load_s) << r.name;
}

TEST(Session, ABudgetThatIsTooShortSaysWhatItLeftOut) {
  FakeRig rig;
  const Session s = tune(wish(5), rig);
  EXPECT_TRUE(s.steps.front().measured);
  EXPECT_THAT(s.left_out, Contains(HasSubstr("batching")));
  EXPECT_THAT(s.left_out, Contains("search"));
  EXPECT_THAT(step(s, "batching").reason, HasSubstr("the budget of 5 s is spent"));
  EXPECT_EQ(s.final_step, 0u);
}

TEST(Session, AnInterruptKeepsWhatWasMeasured) {
  FakeRig rig;
  rig.interrupt_at = 3;  // in the middle of the third measurement
  const Session s = tune(wish(600), rig);
  EXPECT_TRUE(s.interrupted);
  EXPECT_TRUE(step(s, "batching").kept);
  EXPECT_FALSE(step(s, "kv").measured);
  EXPECT_THAT(step(s, "kv").reason, HasSubstr("interrupted"));
  EXPECT_EQ(rig.measured.size(), 3u);
  EXPECT_EQ(advice(s),
            "sluice.yaml has the start's settings with those of batching; not tried, and in sluice.yaml as at "
            "the start: kv, kernels, "
            "scheduler, system: run the same command again first");
}

TEST(Session, AdviceNamesTheStepsThatWereKept) {
  FakeRig rig;
  EXPECT_EQ(advice(tune(wish(600), rig)),
            "sluice.yaml has the start's settings with those of batching, scheduler, search");
}

TEST(Session, LoadsTooShortForAnyAnswerSayHowToMakeThemLonger) {
  class Slow : public FakeRig {
    tune::Run measure(const Configuration& c, double seconds) override {
      tune::Run run = steady(c, 10, seconds);
      for (Request& r : run.requests) r.end = Request::End::open;
      return run;
    }
  } rig;
  const Session s = tune(wish(600), rig);
  EXPECT_THAT(s.steps.front().reason, HasSubstr("give a longer --budget"));
  EXPECT_THAT(step(s, "batching").reason, HasSubstr("give a longer --budget"));
  EXPECT_THAT(rig.said, Not(Contains(HasSubstr("nan"))));
  EXPECT_THAT(advice(s), HasSubstr("too few requests ended to judge start, batching, "));
}

TEST(Session, AnInterruptInTheStartLeavesNothingToReport) {
  FakeRig rig;
  rig.interrupt_at = 1;
  EXPECT_THAT(tune(wish(600), rig).failure, HasSubstr("interrupted"));
}

TEST(Session, AStartThatDoesNotRunIsAFailure) {
  FakeRig rig;
  rig.refuses = [](const Configuration&) { return true; };
  const Session s = tune(wish(600), rig);
  EXPECT_THAT(s.failure, HasSubstr("no memory"));
  EXPECT_EQ(rig.measured.size(), 1u);
}

TEST(Session, AStepThatDoesNotStartIsNotKept) {
  FakeRig rig;
  rig.refuses = [](const Configuration& c) { return c.get("scheduler.policy") == "windowed"; };
  const Session s = tune(wish(600), rig);
  EXPECT_FALSE(step(s, "batching").kept);
  EXPECT_THAT(step(s, "batching").reason, HasSubstr("does not start"));
  EXPECT_TRUE(step(s, "scheduler").kept);
}

TEST(Session, AnotherOrderShowsOtherGains) {
  FakeRig rig;
  const Session s = tune(wish(600, "scheduler,batching"), rig);
  EXPECT_EQ(s.steps[1].name, "scheduler");
  EXPECT_TRUE(s.steps[1].kept);
  EXPECT_FALSE(s.steps[2].kept);  // windows are slower than what there is by then
}

TEST(Session, ASettingThatIsThereAlreadyIsNotMeasuredAgain) {
  FakeRig rig;
  SessionWish w = wish(600);
  w.start.set("kv.allocation", "paged");
  w.start.set("kv.prefix_cache", "true");
  const Session s = tune(w, rig);
  EXPECT_FALSE(step(s, "kv").measured);
  EXPECT_THAT(step(s, "kv").reason, HasSubstr("already"));
}

}  // namespace
}  // namespace sluice::tune
