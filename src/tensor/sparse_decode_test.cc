#include "tensor/sparse_decode.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(SparseDecode, AppliesToRowsOfTheirOwnBehindLongContexts) {
  const SparseDecode sparse{.above_tokens = 1000, .keep_share = 0.25f};
  EXPECT_TRUE(sparse.applies(1, 1001, 0));
  EXPECT_FALSE(sparse.applies(1, 1000, 0));
  EXPECT_FALSE(sparse.applies(2, 5000, 0)) << "a chunk of a prompt";
  EXPECT_FALSE(sparse.applies(1, 5000, 512)) << "a window is short as it is";
  EXPECT_FALSE(SparseDecode{}.applies(1, 5000, 0));
}

TEST(SparseDecode, KeepsTheShareAndNeverLessThanTheFirstAndTheRecent) {
  const SparseDecode quarter{.above_tokens = 1, .keep_share = 0.25f};
  EXPECT_EQ(quarter.kept(16 * 100, 16), 25);
  EXPECT_EQ(quarter.kept(16 * 100 + 1, 16), 26);  // of 101
  EXPECT_EQ(quarter.kept(16 * 12, 16), 5);        // 64 newest tokens and the first block
  EXPECT_EQ(quarter.kept(16 * 12 + 1, 16), 6);    // they reach into one block more
  EXPECT_EQ(quarter.kept(16 * 3, 16), 3);
  EXPECT_EQ(quarter.kept(64 * 10, 64), 3);
  EXPECT_EQ((SparseDecode{1, 1.0f}.kept(1000, 16)), 63);
  EXPECT_EQ(quarter.kept_tokens(16 * 100 + 3, 16), 25 * 16 + 3);
  EXPECT_EQ((SparseDecode{1, 0.0f}.kept(16 * 100, 16)), 5);
}

}  // namespace
}  // namespace sluice
