#include "quantize/calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quantize/overlap.h"

namespace sluice::quantize {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A token for each byte.
std::vector<int32_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

CalibrationWish wish(int samples, uint64_t seed = 1) {
  return {.samples = samples, .sample_tokens = 100, .seed = seed, .tokenize = bytes_of};
}

std::string words(const std::string& word, int count) {
  std::string out;
  for (int i = 0; i < count; i++) out += fmt::format("{}{} ", word, i);
  return out;
}

std::string jsonl() {
  std::string out;
  for (int i = 0; i < 60; i++)
    out += fmt::format("{{\"text\": \"{}\", \"kind\": \"{}\"}}\n", words("w", 8 + i % 3 * 8),
                       i < 45 ? "chat" : "code");
  return out;
}

TEST(Calibration, DrawsKindsAndLengthsInTheirProportions) {
  const auto drawn = draw_samples(jsonl(), "x.jsonl", wish(24));
  ASSERT_TRUE(drawn.ok()) << drawn.error().message;
  EXPECT_EQ(drawn->samples.size(), 24u);
  EXPECT_EQ(drawn->strata,
            "chat long 6, chat middle 6, chat short 6, code long 2, code middle 2, code short 2");
  EXPECT_THAT(drawn->data_hash, testing::StartsWith("xxh3-128:"));
}

TEST(Calibration, TheSameSeedDrawsTheSameSamples) {
  EXPECT_EQ(draw_samples(jsonl(), "x.jsonl", wish(16))->samples,
            draw_samples(jsonl(), "x.jsonl", wish(16))->samples);
  EXPECT_NE(draw_samples(jsonl(), "x.jsonl", wish(16))->strata, "");
}

TEST(Calibration, OfTooFewPiecesAllAreTaken) {
  EXPECT_EQ(draw_samples(jsonl(), "x.jsonl", wish(500))->samples.size(), 60u);
}

TEST(Calibration, SamplesAreABoundWhateverTheKinds) {
  std::string text;
  for (int i = 0; i < 50; i++)
    for (int copy = 0; copy < (i == 7 ? 2 : 1); copy++)
      text += fmt::format("{{\"text\": \"{}\", \"kind\": \"kind {}\"}}\n", words("w", 9 + i % 3), i);
  const auto drawn = draw_samples(text, "x.jsonl", wish(8));
  ASSERT_TRUE(drawn.ok()) << drawn.error().message;
  EXPECT_EQ(drawn->samples.size(), 8u);
  EXPECT_THAT(drawn->strata, HasSubstr("kind 7 "));  // the largest
  EXPECT_THAT(drawn->strata, testing::Not(HasSubstr(" 0")));
}

TEST(Calibration, TextIsCutAtBlankLinesAndLongDocumentsIntoSeveralSamples) {
  std::string text;
  for (int i = 0; i < 4; i++) text += words("prose", 160) + "\n\n";
  text += "\n    int x = 1;\n    return x;\n" + std::string(1000, '-') + ";\n";
  const auto documents = read_documents(text, "x.txt");
  ASSERT_EQ(documents->size(), 5u);
  EXPECT_EQ((*documents)[0].kind, "prose");
  EXPECT_EQ((*documents)[4].kind, "code");
  const auto drawn = draw_samples(text, "x.txt", wish(1000));
  for (const auto& sample : drawn->samples) EXPECT_LE(sample.size(), 100u);
}

TEST(Calibration, EmptyOrTooLittleTextIsRefused) {
  for (const char* text : {"", "\n\n", "a few words"}) {
    const auto drawn = draw_samples(text, "x.txt", wish(8));
    ASSERT_FALSE(drawn.ok());
    EXPECT_THAT(drawn.error().message, HasSubstr("x.txt: "));
    EXPECT_THAT(drawn.error().message, HasSubstr("calibration needs at least 8"));
    EXPECT_EQ(drawn.error().field, "calibration");
  }
}

TEST(Calibration, WhatIsNoTextIsRefused) {
  using namespace std::string_literals;
  for (const std::string& bytes : {"GGUF\x80\xff"s, "a\0b\0c\0"s}) {
    const auto documents = read_documents(bytes, "x.txt");
    ASSERT_FALSE(documents.ok());
    EXPECT_EQ(documents.error().message, "x.txt: is not UTF-8 text");
  }
}

TEST(Calibration, JsonLinesAreToldByTheirNameOrTheirFirstLine) {
  const std::string lines = "\n{\"text\": \"one\", \"kind\": \"k\"}\n{\"text\": \"two\"}\n";
  for (const char* name : {"x.jsonl", "x.txt"})
    for (const std::string& bytes : {lines, "\xef\xbb\xbf" + lines}) {
      const auto documents = read_documents(bytes, name);
      ASSERT_TRUE(documents.ok() && documents->size() == 2) << name;
      EXPECT_EQ((*documents)[0].kind, "k");
    }
  for (const char* text : {"{\n  \"text\": \"one\"\n}\n", "{\"other\": 1}\n", "{ braces }\n"})
    EXPECT_EQ(read_documents(text, "x.txt")->size(), 1u) << text;
}

TEST(Calibration, ALineThatIsNoObjectWithTextIsNamed) {
  EXPECT_THAT(read_documents("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", "x.jsonl").error().message,
              HasSubstr("x.jsonl: line 2: key 'text'"));
  EXPECT_THAT(read_documents("{\"text\": \"a\"}\nplain\n", "x.jsonl").error().message,
              HasSubstr("x.jsonl: line 2"));
}

TEST(Overlap, FindsASharedPassageInAnyLayoutAndCase) {
  const std::string text = words("alpha", 64);
  std::string other = words("beta", 7) + words("alpha", 64);
  for (char& c : other) c = c == ' ' ? '\n' : char(std::toupper(c));
  const auto found = shared_passage(other, passages(text));
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, testing::StartsWith("alpha0 alpha1 "));
  EXPECT_FALSE(shared_passage(words("beta", 64), passages(text)).has_value());
  EXPECT_THAT(passages("fifteen words or fewer have no passage"), IsEmpty());
}

TEST(Overlap, TextWithoutSpacesHasPassagesOfCharacters) {
  std::string text;
  for (int i = 0; i < 40; i++) text += "\xe6\xb0" + std::string(1, char(0x81 + i));
  EXPECT_EQ(passages(text).size(), 2u);
  EXPECT_TRUE(shared_passage("x " + text.substr(3 * 5), passages(text)).has_value());
}

TEST(Overlap, AFileIsAPassageOfItself) {
  const std::string few = "{\"text\": \"four words and more\"}";
  EXPECT_TRUE(shared_passage(few, std::vector{whole_file(few)}).has_value());
  EXPECT_FALSE(shared_passage(few + "\n", std::vector{whole_file(few)}).has_value());
}

TEST(Overlap, HashesComeBackFromTheirText) {
  const auto hashes = passages(words("x", 100));
  EXPECT_EQ(hashes.size(), 6u);
  EXPECT_EQ(parse_passages(passages_text(hashes)), hashes);
  EXPECT_EQ(parse_passages("rubbish\n" + passages_text(hashes) + "00\n"), hashes);
}

}  // namespace
}  // namespace sluice::quantize
