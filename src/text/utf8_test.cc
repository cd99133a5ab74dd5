#include "text/utf8.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Utf8, AcceptsWhatUnicodeAccepts) {
  for (const char* text :
       {"", "a", "é", "€", "😀", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF", "\xEF\xBF\xBF"}) {
    EXPECT_TRUE(is_valid_utf8(text)) << text;
    EXPECT_EQ(replace_invalid_utf8(text), text);
  }
  EXPECT_TRUE(is_valid_utf8(std::string_view("a\0b", 3)));
}

TEST(Utf8, RefusesTheRest) {
  for (const char* text : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "12345678\xC3"}) {
    EXPECT_FALSE(is_valid_utf8(text)) << text;
  }
}

TEST(Utf8, OneReplacementPerMaximalPart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"
                                 "a"),
            r + "a");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);  // no surrogate has a well-formed beginning
  EXPECT_EQ(replace_invalid_utf8("\xF0\x80\x80\x41"), r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("x\xC3\xC3\xA9"), "x" + r + "é");
}

TEST(Utf8, IncompleteTail) {
  EXPECT_EQ(utf8_incomplete_tail(""), 0u);
  EXPECT_EQ(utf8_incomplete_tail("é"), 0u);
  EXPECT_EQ(utf8_incomplete_tail("a\xC3"), 1u);
  EXPECT_EQ(utf8_incomplete_tail("a\xE2\x82"), 2u);
  EXPECT_EQ(utf8_incomplete_tail("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(utf8_incomplete_tail("\x80\x80"), 0u);
  EXPECT_EQ(utf8_incomplete_tail("\xED\xA0"), 0u);  // nothing can complete it
}

}  // namespace
}  // namespace sluice
