#include "text/tokenizer_model.h"

#include <gtest/gtest.h>

#include "text/test_support.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

using namespace testing_support;

// The golden ids are from sentencepiece 0.2.3.
void check_golden(const std::string& name) {
  Result<VocabularyData> data =
      vocabulary_from_sentencepiece(read_file(source_path("src/text/testdata/" + name + ".model")));
  ASSERT_TRUE(data.ok()) << data.error().message;
  const auto tokenizer = Tokenizer::create(std::move(*data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  for_each_json_line(
      source_path("src/text/testdata/" + name + ".golden.jsonl"), [&](simdjson::dom::element line) {
        const std::string text{std::string_view(line["text"])};
        EXPECT_EQ((*tokenizer)->encode(text, false, false), id_list(line["ids"])) << name << ": " << text;
      });
}

TEST(TokenizerModel, BpeWithByteFallback) { check_golden("spm_bpe"); }
TEST(TokenizerModel, Unigram) { check_golden("spm_unigram"); }

TEST(TokenizerModel, BadFilesAreErrors) {
  EXPECT_FALSE(vocabulary_from_sentencepiece("").ok());
  EXPECT_FALSE(vocabulary_from_sentencepiece("not a model at all").ok());
  EXPECT_FALSE(
      vocabulary_from_sentencepiece(std::string("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11)).ok());
  EXPECT_FALSE(vocabulary_from_sentencepiece(std::string("\x0A\x05\x0A\x7F"
                                                         "ab",
                                                         6))
                   .ok());  // length past the end
  // One piece "a", and a trainer that says "word model".
  const Result<VocabularyData> words =
      vocabulary_from_sentencepiece(std::string("\x0A\x03\x0A\x01"
                                                "a\x12\x02\x18\x03",
                                                9));
  ASSERT_FALSE(words.ok());
  EXPECT_EQ(words.error().code, ErrorCode::kUnsupported);
}

TEST(TokenizerModel, EveryCutIsAnErrorOrAVocabulary) {
  const std::string whole = read_file(source_path("src/text/testdata/spm_bpe.model"));
  int errors = 0;
  for (size_t size = 0; size < whole.size(); size += 7) {
    Result<VocabularyData> data = vocabulary_from_sentencepiece(whole.substr(0, size));
    if (data.ok()) {
      const auto made = Tokenizer::create(std::move(*data));  // must not crash, whatever comes out
      if (made.ok()) (void)(*made)->encode("some text", true, true);
    } else {
      ++errors;
    }
  }
  EXPECT_GT(errors, 100);
}

}  // namespace
}  // namespace sluice
