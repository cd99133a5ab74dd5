#include "engine/kv_size.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

KvWish wish(int context, size_t free_blocks_worth) {
  KvWish w;
  w.layout = {.block_tokens = 16, .windows = {0}, .max_length = context, .max_step_tokens = 512};
  w.block_bytes = 1000;
  w.free_bytes = free_blocks_worth * 1000;
  w.max_sequences = 8;
  return w;
}

TEST(KvSize, RoomForAllAtAModerateLengthOrOneOfTheLongest) {
  EXPECT_EQ(size_kv(wish(8192, 100000))->blocks, 8 * 2048 / 16);
  EXPECT_EQ(size_kv(wish(131072, 100000))->blocks, 131072 / 16);
  EXPECT_EQ(size_kv(wish(512, 100000))->blocks, 8 * 512 / 16);
}

TEST(KvSize, AtMostHalfOfTheFreeMemoryThenTheContextShrinks) {
  const auto half = size_kv(wish(8192, 1200));
  EXPECT_EQ(half->blocks, 600);
  EXPECT_EQ(half->layout.max_length, 8192);
  const auto small = size_kv(wish(8192, 200));
  EXPECT_EQ(small->blocks, 100);
  EXPECT_EQ(small->layout.max_length, 1600);
  EXPECT_NE(small->reason.find("shrunk from 8192"), std::string::npos);
  const auto none = size_kv(wish(8192, 6));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(none.error().field, "engine.kv_bytes");
}

TEST(KvSize, AContextThatIsCutByASettingNamesIt) {
  KvWish w = wish(8192, 10000);
  w.kv_bytes = 100 * 1000;
  EXPECT_NE(size_kv(w)->reason.find("shrunk from 8192 since engine.kv_bytes holds no more"), std::string::npos);
}

TEST(KvSize, WhatTheUserSetsIsTaken) {
  KvWish w = wish(8192, 10);
  w.kv_bytes = 700 * 1000 + 999;
  EXPECT_EQ(size_kv(w)->blocks, 700);
  EXPECT_NE(size_kv(w)->reason.find("more than the 0 MiB that are free"), std::string::npos);
  w.kv_bytes = 1;
  const auto one = size_kv(w);
  ASSERT_FALSE(one.ok());
  EXPECT_NE(
      one.error().message.find("1 bytes for keys and values are not enough for a context of 64 tokens, which "
                               "takes 4000; give more, or 0"),
      std::string::npos)
      << one.error().message;
}

TEST(KvSize, MoreThanThereIsIsRefusedAndMoreThanIsFreeIsNot) {
  KvWish w = wish(8192, 10);
  w.machine_bytes = 700 * 1000;
  w.kv_bytes = 700 * 1000;
  EXPECT_TRUE(size_kv(w)->exceeds_free);
  w.kv_bytes += 1;
  const auto more = size_kv(w);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().field, "engine.kv_bytes");
  EXPECT_NE(more.error().message.find("700001 bytes are more than the machine's 700000"), std::string::npos)
      << more.error().message;
}

TEST(KvSize, OneSequenceOfTheContextAlwaysFits) {
  for (int window : {0, 64, 512}) {
    for (size_t blocks = 30; blocks < 3000; blocks += 37) {
      KvWish w = wish(32768, 2 * blocks);
      w.layout.windows = {0, window, window};
      w.layout.max_step_tokens = 64;
      const auto size = size_kv(w);
      ASSERT_TRUE(size.ok()) << blocks;
      EXPECT_LE(size->layout.peak_blocks(size->layout.max_length), size->blocks);
    }
  }
}

constexpr size_t kGiB = size_t{1} << 30;

KvWish card_wish(double used_gib, double fraction) {
  KvWish w = wish(8192, 0);
  w.block_bytes = kGiB / 1024;
  w.card = {
      .total = 100 * kGiB, .used = size_t(used_gib * double(kGiB)), .others = 3 * kGiB, .fraction = fraction};
  w.max_sequences = 256;
  return w;
}

TEST(KvSize, ACardGivesWhatIsLeftOfItsShare) {
  const auto left = size_kv(card_wish(20, 0.9));
  ASSERT_TRUE(left.ok());
  EXPECT_NEAR(left->blocks, 70 * 1024, 1);
  EXPECT_EQ(left->layout.max_length, 8192);
  EXPECT_NE(left->reason.find("what is left of the card's share"), std::string::npos) << left->reason;
  EXPECT_NEAR(size_kv(card_wish(20, 0.5))->blocks, 30 * 1024, 1);
  EXPECT_NEAR(size_kv(card_wish(89.75, 0.9))->blocks, 256, 1);
  EXPECT_NEAR(size_kv(card_wish(89.75, 0.9))->layout.max_length, 256 * 16, 16) << "the context shrinks";

  KvWish few = card_wish(20, 0.9);
  few.max_sequences = 2;
  EXPECT_EQ(size_kv(few)->blocks, 2 * 8192 / 16) << "more could not be used";
  few.kv_bytes = 5 * kGiB;
  EXPECT_EQ(size_kv(few)->blocks, 5 * 1024);
}

TEST(KvSize, ACardThatIsTooFullSaysHowMuchIsShortAndWhatFreesIt) {
  for (double used : {90.0, 95.5}) {
    const auto none = size_kv(card_wish(used, 0.9));
    ASSERT_FALSE(none.ok());
    const std::string& text = none.error().message;
    EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(text.find(used == 90 ? "0.00 GiB short" : "5.50 GiB short"), std::string::npos) << text;
    for (const char* setting : {"gpu.memory_fraction", "engine.step_tokens", "engine.max_sequences",
                                "engine.max_context", "another card", "3.0 GiB are used by other processes"})
      EXPECT_NE(text.find(setting), std::string::npos) << text;
    EXPECT_EQ(text.find("quantized"), std::string::npos) << "they become bf16 there: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(KvSize, ACardKeepsRoomForWhatComesAfterThePool) {
  EXPECT_NEAR(size_kv(card_wish(20, 1))->blocks, 80 * 1024 - 768, 1);
  const auto none = size_kv(card_wish(99.5, 1));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message.find("Raise gpu.memory_fraction"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace sluice
