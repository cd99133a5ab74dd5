#include "base/meter.h"

#include <gtest/gtest.h>

#include <thread>

namespace sluice {
namespace {

TEST(Meter, TheSameNameAndLabelsAreOneMeter) {
  Counter& a = meter::counter("test_total", "Help.", "kind=\"a\"");
  Counter& b = meter::counter("test_total", "Help.", "kind=\"b\"");
  EXPECT_NE(&a, &b);
  EXPECT_EQ(&a, &meter::counter("test_total", "", "kind=\"a\""));
  a.add(3);
  b.add();
  int found = 0;
  for (const Meter& m : meter::all()) {
    if (m.name != "test_total") continue;
    ++found;
    EXPECT_EQ(m.kind, Meter::Kind::counter);
    EXPECT_EQ(m.help, "Help.");
    EXPECT_EQ(m.counter->value(), m.labels == "kind=\"a\"" ? 3u : 1u);
  }
  EXPECT_EQ(found, 2);
}

TEST(MeterDeathTest, OneNameHasOneKind) {
  meter::gauge("test_kind", "");
  EXPECT_DEATH(meter::counter("test_kind", ""), "two kinds");
}

TEST(Meter, AHistogramCountsIntoTheFirstBoundThatHolds) {
  constexpr std::array<double, 3> bounds = {1, 2, 4};
  Histogram h(bounds);
  for (double v : {0.5, 1.0, 1.5, 4.0, 4.1, 100.0}) h.observe(v);
  EXPECT_EQ(h.bucket(0), 2u);
  EXPECT_EQ(h.bucket(1), 1u);
  EXPECT_EQ(h.bucket(2), 1u);
  EXPECT_EQ(h.bucket(3), 2u);
  EXPECT_DOUBLE_EQ(h.sum(), 111.1);
}

TEST(MeterDeathTest, HistogramBoundsMustRise) {
  constexpr std::array<double, 2> bounds = {2, 1};
  EXPECT_DEATH(Histogram h(bounds), "must rise");
}

TEST(Meter, WritersOnManyThreadsLoseNothing) {
  Counter& c = meter::counter("test_threads_total", "");
  constexpr std::array<double, 1> bounds = {0.5};
  Histogram& h = meter::histogram("test_threads", "", bounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) c.add(), h.observe(i % 2);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(c.value(), 80000u);
  EXPECT_EQ(h.bucket(0) + h.bucket(1), 80000u);
  EXPECT_DOUBLE_EQ(h.sum(), 40000);
}

}  // namespace
}  // namespace sluice
