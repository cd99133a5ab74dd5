// Faults strike where their plan says, and nowhere else.
#include "base/faults.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

class FaultsTest : public testing::Test {
 protected:
  void arm(std::string_view text) {
    auto plan = parse_faults(text);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    faults::arm(std::move(*plan));
  }
  void TearDown() override { faults::disarm(); }

  static std::vector<int64_t> struck(Fault fault, int64_t until) {
    std::vector<int64_t> at;
    for (int64_t n = 1; n <= until; ++n)
      if (faults::met(fault, n)) at.push_back(n);
    return at;
  }
};

TEST_F(FaultsTest, NothingIsArmedUnlessSomebodyArmsIt) {
  EXPECT_FALSE(faults::armed());
  arm("eagain");
  EXPECT_TRUE(faults::armed());
  faults::disarm();
  EXPECT_FALSE(faults::armed());
}

TEST_F(FaultsTest, ARuleStrikesFromOnEveryAndAtMostSoOften) {
  arm("slow_step:from=5,every=3,count=3,amount=20");
  EXPECT_EQ(struck(Fault::slow_step, 100), (std::vector<int64_t>{5, 8, 11}));
  EXPECT_TRUE(struck(Fault::cpu_stall, 100).empty());
}

TEST_F(FaultsTest, ChanceIsTheSameEachTime) {
  arm("seed=3; eagain:rate=0.25");
  const auto first = struck(Fault::eagain, 4000);
  EXPECT_NEAR(double(first.size()), 1000, 150);
  arm("seed=3; eagain:rate=0.25");
  EXPECT_EQ(struck(Fault::eagain, 4000), first);
  arm("seed=4; eagain:rate=0.25");
  EXPECT_NE(struck(Fault::eagain, 4000), first);
}

TEST_F(FaultsTest, ARequestsRuleCountsItsTokens) {
  arm("nan_logits:request=odd,from=3,amount=7,count=1");
  EXPECT_FALSE(faults::met(Fault::nan_logits, "even-1", 3));
  EXPECT_FALSE(faults::met(Fault::nan_logits, "odd-1", 2));
  EXPECT_EQ(faults::met(Fault::nan_logits, "odd-1", 3), 7);
  EXPECT_FALSE(faults::met(Fault::nan_logits, "odd-2", 3)) << "once is once";
  EXPECT_FALSE(faults::met(Fault::nan_logits, 3)) << "a place that knows no request";
}

TEST_F(FaultsTest, WithoutANumberAPlaceCountsItsMeetings) {
  arm("short_write:from=2,count=1,amount=1; eagain:from=1,count=1");
  EXPECT_FALSE(faults::met(Fault::short_write));
  EXPECT_TRUE(faults::met(Fault::eagain));
  EXPECT_EQ(faults::met(Fault::short_write), 1);
}

TEST_F(FaultsTest, APlaceOfSeveralNamesIsMetByEachAndCountsForItsOwnRules) {
  arm("kill_connection:amount=2,from=2,count=1; kill_connection:amount=5,from=2,count=1");
  EXPECT_FALSE(faults::met_at(Fault::kill_connection, {0, 1, 4})) << "nobody's";
  EXPECT_FALSE(faults::met_at(Fault::kill_connection, {0, 2, 4}));
  EXPECT_TRUE(faults::met_at(Fault::kill_connection, {0, 2, 5})) << "the first rule, for the second time";
  EXPECT_FALSE(faults::met_at(Fault::kill_connection, {0, 1, 5}));
  EXPECT_TRUE(faults::met_at(Fault::kill_connection, {0, 1, 5}));
  EXPECT_FALSE(faults::met_at(Fault::eagain, {2}));
}

TEST_F(FaultsTest, WhatIsWrongIsNamed) {
  for (const auto& [text, part] :
       std::vector<std::pair<const char*, const char*>>{{"", "no fault"},
                                                        {"seed=1", "no fault"},
                                                        {"nonsense", "unknown fault \"nonsense\""},
                                                        {"eagain:rate=2", "rate"},
                                                        {"eagain:amount=3", "a place from 0 to 2"},
                                                        {"alloc_failure:amount=9", "a place from 0 to 5"},
                                                        {"kill_connection:amount=-1", "a place from 0 to 8"},
                                                        {"eagain:rate=0", "rate"},
                                                        {"eagain:from=0", "from"},
                                                        {"eagain:request=x", "no request"},
                                                        {"eagain:often=1", "unknown key \"often\""},
                                                        {"seed=x; eagain", "seed=x"}}) {
    const auto plan = parse_faults(text);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
  }
}

}  // namespace
}  // namespace sluice
