#include "sched/simulator/trace.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sched/simulator/random.h"

namespace sluice {
namespace {

TEST(ExactFunctions, AgreeWithTheCLibrary) {
  Random random(1, 0);
  for (int i = 0; i < 10000; ++i) {
    const double x = std::ldexp(random.uniform(), int(random.between(-60, 60)));
    EXPECT_NEAR(exact_log(x), std::log(x), 1e-14 * std::max(1.0, std::abs(std::log(x)))) << x;
    const double y = 40 * (random.uniform() - 0.5);
    EXPECT_NEAR(exact_exp(y) / std::exp(y), 1, 1e-14) << y;
  }
}

// Of std::mt19937_64 as the standard has it, and of our own arithmetic: the same on every machine.
TEST(Random, IsTheSameEverywhere) {
  Random random(7, 3);
  EXPECT_EQ(random.next(), Random(7, 3).next());
  EXPECT_NE(Random(7, 3).next(), Random(7, 4).next());
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

TraceWish wish_of(Arrivals arrivals, int requests) {
  TraceWish wish;
  wish.arrivals = arrivals;
  wish.requests = requests;
  return wish;
}

TEST(Trace, PoissonHasItsRateAndExponentialGaps) {
  const Trace trace = make_trace(wish_of({.rate = 50}, 20000));
  const double span = seconds(trace.requests.back().at);
  EXPECT_NEAR(20000 / span, 50, 1);
  int short_gaps = 0;
  for (size_t i = 1; i < trace.requests.size(); ++i) {
    ASSERT_GE(trace.requests[i].at, trace.requests[i - 1].at);
    short_gaps += trace.requests[i].at - trace.requests[i - 1].at < TimeNs(1e9 / 50);
  }
  EXPECT_NEAR(short_gaps / 20000.0, 1 - std::exp(-1), 0.02);
}

TEST(Trace, BurstsHaveTheMeanOfBothStates) {
  const Arrivals bursty{.kind = Arrivals::Kind::bursty, .rate = 10, .burst_rate = 200, .on_s = 1, .off_s = 3};
  const Trace trace = make_trace(wish_of(bursty, 50000));
  EXPECT_NEAR(50000 / seconds(trace.requests.back().at), (10 * 3 + 200 * 1) / 4.0, 3);
}

TEST(Trace, SilenceBetweenBurstsIsPossible) {
  const Arrivals bursty{.kind = Arrivals::Kind::bursty, .rate = 0, .burst_rate = 100, .on_s = 1, .off_s = 1};
  EXPECT_NEAR(20000 / seconds(make_trace(wish_of(bursty, 20000)).requests.back().at), 50, 10);
}

TEST(Trace, LengthsLanesAndTenantsAreAsWished) {
  TraceWish wish = wish_of({.rate = 100}, 20000);
  wish.input = {LengthLaw::Kind::uniform, 384, 640};
  wish.output = {LengthLaw::Kind::lognormal, 1, 4096, 100, 0.5};
  wish.lanes = {0.2, 0.5, 0.3};
  wish.tenants = 4;
  wish.shared_prefix = 500;
  double input = 0;
  int below_median = 0, interactive = 0, tenant_one = 0;
  for (const TracedRequest& r : make_trace(wish).requests) {
    ASSERT_TRUE(r.input >= 384 && r.input <= 640);
    ASSERT_EQ(r.shared_prefix, std::min(500, r.input));
    input += r.input / 20000.0;
    below_median += r.output < 100;
    interactive += r.lane == Lane::interactive;
    tenant_one += r.tenant == 1;
  }
  EXPECT_NEAR(input, 512, 2);
  EXPECT_NEAR(below_median, 10000, 300);
  EXPECT_NEAR(interactive, 4000, 200);
  EXPECT_NEAR(tenant_one, 5000, 250);
}

TEST(Trace, OtherLengthsDoNotMoveTheArrivals) {
  TraceWish wish = wish_of({.rate = 5}, 100);
  const Trace one = make_trace(wish);
  wish.input = {LengthLaw::Kind::uniform, 1, 99};
  const Trace other = make_trace(wish);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(one.requests[i].at, other.requests[i].at);
}

TEST(Trace, EndsWithItsDuration) {
  TraceWish wish = wish_of({.rate = 100}, 0);
  wish.duration_ns = 10'000'000'000;
  const Trace trace = make_trace(wish);
  EXPECT_NEAR(double(trace.requests.size()), 1000, 100);
  EXPECT_LT(trace.requests.back().at, wish.duration_ns);
}

}  // namespace
}  // namespace sluice
