#include "tune/search.h"

#include <gtest/gtest.h>

namespace sluice::tune {
namespace {

int number(const Configuration& c, const char* key) { return std::atoi(c.get(key).c_str()); }

TEST(Search, GoesAlongOneAxisAfterTheOther) {
  // Best at a = 3, b = 20; each axis shows its part.
  const auto predict = [](const Configuration& c) -> Prediction {
    const int a = number(c, "a"), b = number(c, "b");
    return {true, 100.0 - (a - 3) * (a - 3) - (b - 20) * (b - 20), 0};
  };
  const std::vector<Axis> axes = {{"a", {"0", "1", "2", "3", "4"}}, {"b", {"0", "10", "20"}}};
  const auto found = coordinate_descent({"m", {}}, axes, predict, 100, 2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(number(found[0].configuration, "a"), 3);
  EXPECT_EQ(number(found[0].configuration, "b"), 20);
  EXPECT_LT(found[1].prediction.qps, found[0].prediction.qps);
}

TEST(Search, FindsNothingWhereTheStartIsBest) {
  const auto predict = [](const Configuration& c) -> Prediction {
    return {true, c.settings.empty() ? 2.0 : 1.0, 0};
  };
  EXPECT_TRUE(coordinate_descent({"m", {}}, {{"a", {"1", "2"}}}, predict, 100, 2).empty());
}

TEST(Search, DoesNotTakeWhatAServerWouldRefuse) {
  const auto predict = [](const Configuration& c) -> Prediction {
    return {c.get("a") != "2", double(number(c, "a")), 0};
  };
  const auto found = coordinate_descent({"m", {}}, {{"a", {"1", "2"}}}, predict, 100, 2);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].configuration.get("a"), "1");
}

TEST(Search, KeepsToItsPredictions) {
  int asked = 0;
  const auto predict = [&](const Configuration& c) -> Prediction {
    return ++asked, Prediction{true, double(asked), 0};
  };
  coordinate_descent({"m", {}}, {{"a", {"1", "2", "3", "4"}}, {"b", {"1", "2", "3", "4"}}}, predict, 5, 2);
  EXPECT_EQ(asked, 5);
}

TEST(Search, AnSloGoesBeforeSpeed) {
  EXPECT_TRUE(better({true, 5, 0.9}, {true, 50, 1.1}));
  EXPECT_TRUE(better({true, 5, 1.1}, {true, 50, 2}));
  EXPECT_TRUE(better({true, 50, 0.9}, {true, 5, 0.1}));
  EXPECT_TRUE(better({true, 1, 9}, {false, 50, 0}));
}

TEST(Search, AxesAreOfKeysThatMayBeLeftAtTheirDefault) {
  for (const Axis& axis : numeric_axes(128, true)) EXPECT_GE(axis.values.size(), 3u) << axis.key;
  for (const Axis& axis : numeric_axes(1, false))
    for (const std::string& value : axis.values) EXPECT_NE(value, "0") << axis.key;
}

}  // namespace
}  // namespace sluice::tune
