#include "tune/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::tune {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Figures as a steady load gives them, `noise` around the mean.
Figures figures(double qps, double p95, double noise = 0.01) {
  Figures f;
  for (const double d : {-1.0, 0.5, 0.0, -0.5, 1.0}) {
    f.windows.push_back({double(f.windows.size()), double(f.windows.size() + 1)});
    f.qps_samples.push_back(qps * (1 + noise * d));
    f.tok_s_samples.push_back(10 * qps * (1 + noise * d));
    f.p95_samples.push_back(p95 * (1 + noise * d));
  }
  f.qps = estimate(f.qps_samples), f.tok_s = estimate(f.tok_s_samples), f.p95_ms = estimate(f.p95_samples);
  f.e2e_ms = {p95 / 2, p95, p95 * 1.1};
  f.completed = 100;
  return f;
}

Verdict verdict(const Figures& before, const Figures& after, const std::string& slo = "") {
  const tune::Run run;
  return judge({run, before}, {run, after}, *parse_slo(slo));
}

TEST(Judge, KeepsWhatIsFasterBeyondTheNoise) {
  const Verdict v = verdict(figures(10, 1000), figures(12, 1000));
  EXPECT_TRUE(v.keep);
  EXPECT_THAT(v.reason, HasSubstr("+20.0 % tokens/s"));
  EXPECT_NEAR(v.tok_s_gain.mean, 1.2, 1e-9);
}

TEST(Judge, DropsWhatTheNoiseMayHaveMade) {
  const Verdict v = verdict(figures(10, 1000, 0.3), figures(11, 1000, 0.3));
  EXPECT_FALSE(v.keep);
  EXPECT_THAT(v.reason, HasSubstr("within the noise"));
}

TEST(Judge, KeepsWhatIsMuchBetterInSpeedAndTailWhateverTheNoise) {
  const Verdict v = verdict(figures(10, 1000, 0.6), figures(15, 700, 0.6));
  EXPECT_TRUE(v.keep);
  EXPECT_LT(v.tok_s_gain.low, 1);
  EXPECT_THAT(v.reason, HasSubstr("likely better: +50.0 % tokens/s"));
  EXPECT_FALSE(verdict(figures(10, 1000, 0.6), figures(15, 1000, 0.6)).keep) << "of the tail nothing is seen";
  Figures open = figures(15, 700, 0.6);
  open.p95_at_least = true;
  EXPECT_FALSE(verdict(figures(10, 1000, 0.6), open).keep) << "its tail may be any length";
}

TEST(Judge, OneWindowTellsNothingOfTheNoise) {
  Figures before = figures(10, 1000), after = figures(20, 1000);
  for (Figures* f : {&before, &after}) {
    f->qps_samples.resize(1), f->tok_s_samples.resize(1);
    f->qps = estimate(f->qps_samples), f->tok_s = estimate(f->tok_s_samples);
  }
  const Verdict v = verdict(before, after);
  EXPECT_FALSE(v.keep);
  EXPECT_THAT(v.reason, HasSubstr("within the noise: +100.0 % tokens/s (one window: its noise is not known)"));
}

TEST(Judge, DropsWhatIsSlower) {
  EXPECT_THAT(verdict(figures(10, 1000), figures(8, 900)).reason, HasSubstr("slower"));
}

TEST(Judge, KeepsAShorterTailAtTheSameSpeed) {
  EXPECT_TRUE(verdict(figures(10, 1000), figures(10, 800)).keep);
  EXPECT_FALSE(verdict(figures(10, 1000), figures(10, 995)).keep);
}

TEST(Judge, DropsWhatMakesRequestsFailHoweverFast) {
  Figures failing = figures(100, 10);
  failing.failed = 3;
  EXPECT_FALSE(verdict(figures(10, 1000), failing).keep);
  EXPECT_THAT(verdict(figures(10, 1000), failing).reason, HasSubstr("3 of 103 requests failed"));
}

TEST(Judge, DropsWhatDoesNotStart) {
  tune::Run broken;
  broken.failure = "the server does not start: no memory";
  const tune::Run run;
  const Figures before = figures(10, 1000);
  EXPECT_EQ(judge({run, before}, {broken, Figures{}}, {}).reason, broken.failure);
}

TEST(Judge, WhatWasTooShortToTellIsNoNoise) {
  Figures open;  // one request ended, and with it no window
  open.completed = 1, open.open = 127;
  const Verdict none = verdict(figures(10, 1000), open);
  EXPECT_FALSE(none.keep);
  EXPECT_THAT(none.reason, AllOf(HasSubstr("too few requests ended"), HasSubstr("--budget")));
  const Verdict first = verdict(open, figures(10, 1000));
  EXPECT_TRUE(first.keep);
  EXPECT_THAT(first.reason, HasSubstr("too few requests ended before"));
}

TEST(Judge, AnSloGoesBeforeSpeed) {
  EXPECT_FALSE(verdict(figures(10, 1000), figures(20, 2000), "p95_ms<1200").keep);
  EXPECT_THAT(verdict(figures(10, 1000), figures(20, 2000), "p95_ms<1200").reason,
              HasSubstr("further from the SLO: 1.67 times its bound, before 0.83"));
  EXPECT_TRUE(verdict(figures(20, 2000), figures(10, 1000), "p95_ms<1200").keep);
  EXPECT_TRUE(verdict(figures(10, 1000), figures(20, 1100), "p95_ms<1200").keep);
  // Both miss it: nearer wins, though slower.
  EXPECT_TRUE(verdict(figures(20, 4000), figures(10, 2000), "p95_ms<1200").keep);
}

}  // namespace
}  // namespace sluice::tune
