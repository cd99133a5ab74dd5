#include "tune/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::tune {
namespace {

TEST(Statistics, AnIntervalIsStudents) {
  const std::vector<double> samples = {9, 10, 11, 10, 10};  // deviation 0.7071, t of 4 degrees 2.776
  const Estimate e = estimate(samples);
  EXPECT_DOUBLE_EQ(e.mean, 10);
  EXPECT_NEAR(e.high - e.mean, 2.776 * 0.70711 / std::sqrt(5.0), 1e-4);
  EXPECT_NEAR(e.mean - e.low, e.high - e.mean, 1e-12);
  EXPECT_EQ(e.samples, 5);
}

TEST(Statistics, OneSampleSaysNothingOfTheNoise) {
  const Estimate e = estimate(std::vector<double>{7});
  EXPECT_EQ(e.mean, 7);
  EXPECT_TRUE(std::isinf(e.low) && std::isinf(e.high));
  EXPECT_TRUE(std::isnan(estimate({}).mean));
}

TEST(Statistics, WhatIsNoNumberIsLeftOut) {
  EXPECT_EQ(estimate(std::vector<double>{1, NAN, 3}).mean, 2);
  EXPECT_EQ(estimate(std::vector<double>{1, NAN, 3}).samples, 2);
}

TEST(Statistics, ARatioIsAsUncertainAsBothSides) {
  const std::vector<double> quiet = {10, 10.1, 9.9, 10, 10}, twice = {20, 20.2, 19.8, 20, 20},
                            noisy = {10, 30, 20, 5, 35};
  const Estimate sure = ratio(twice, quiet), unsure = ratio(noisy, quiet);
  EXPECT_NEAR(sure.mean, 2, 1e-12);
  EXPECT_GT(sure.low, 1.95);
  EXPECT_LT(sure.high, 2.05);
  EXPECT_NEAR(unsure.mean, 2, 1e-12);
  EXPECT_LT(unsure.low, 1);
  EXPECT_TRUE(std::isnan(ratio(twice, std::vector<double>{0, 0}).mean));
}

TEST(Statistics, TwoSamplesBorrowTheNoiseOfTheOtherSide) {
  // Pooled: (0.1^2 / 2 + 0) / 4 degrees; by its own one degree the interval would be over a hundred percent
  // wide.
  const Estimate r = ratio(std::vector<double>{150, 150, 150, 150}, std::vector<double>{95, 105});
  EXPECT_NEAR(r.mean, 1.5, 1e-12);
  EXPECT_NEAR(r.high - r.mean, 2.776 * 1.5 * std::sqrt(0.005 / 4 * 0.75), 1e-3);
  EXPECT_TRUE(std::isinf(ratio(std::vector<double>{2}, std::vector<double>{1}).high));
}

TEST(Statistics, QuantilesGoDownToTheNormalOne) {
  EXPECT_NEAR(t_quantile(1), 12.706, 1e-3);
  EXPECT_NEAR(t_quantile(20), 2.086, 3e-3);
  EXPECT_NEAR(t_quantile(60), 2.000, 2e-3);
  for (int n = 1; n < 200; ++n) EXPECT_GT(t_quantile(n), t_quantile(n + 1)) << n;
}

TEST(Statistics, PercentilesAreInterpolated) {
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

}  // namespace
}  // namespace sluice::tune
