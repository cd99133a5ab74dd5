#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_support.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using namespace testing_support;

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, Detokenizer::Start start) {
  Detokenizer detokenizer(tokenizer, start);
  std::string out;
  for (const int32_t id : ids) {
    const size_t before = out.size();
    detokenizer.push(id, out);
    EXPECT_TRUE(is_valid_utf8(std::string_view(out).substr(before)));
  }
  detokenizer.finish(out);
  return out;
}

std::string pushed(Detokenizer& detokenizer, int32_t id) {
  std::string out;
  detokenizer.push(id, out);
  return out;
}

std::string finished(Detokenizer& detokenizer) {
  std::string out;
  detokenizer.finish(out);
  return out;
}

void check_agreement(const Tokenizer& tokenizer, const std::string& cases) {
  for_each_json_line(case_path("tokenize/" + cases), [&](simdjson::dom::element line) {
    const std::vector<int32_t> ids = id_list(line["ids_s1_p1"]);
    EXPECT_EQ(stream(tokenizer, ids, Detokenizer::Start::kText), replace_invalid_utf8(tokenizer.decode(ids)));
  });
  std::mt19937 rng(11);
  for (int round = 0; round < 300; ++round) {  // random tokens are mostly pieces of characters that do not fit
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(int32_t(rng() % uint32_t(rng() % 2 ? tokenizer.size() : 600)));
    EXPECT_EQ(stream(tokenizer, ids, Detokenizer::Start::kText), replace_invalid_utf8(tokenizer.decode(ids)));
  }
}

TEST(Detokenizer, AgreesWithWholeDecodeByteLevel) {
  check_agreement(smollm_tokenizer(), "SmolLM2-135M-Instruct.given.jsonl");
}
TEST(Detokenizer, AgreesWithWholeDecodeSentencePiece) {
  check_agreement(gemma_tokenizer(), "gemma-3-270m.given.jsonl");
}

// A vocabulary of bytes, with a space prefix, to try sequences one by one.
std::unique_ptr<Tokenizer> byte_tokenizer() {
  VocabularyData data;
  data.kind = VocabularyKind::kSentencePieceBpe;
  const char* hex = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    data.tokens.push_back(std::string("<0x") + hex[b / 16] + hex[b % 16] + ">");
    data.types.push_back(TokenType::kByte);
  }
  for (const char* text : {"▁", "▁hi", "<s>"}) {
    data.tokens.push_back(text);
    data.types.push_back(text[0] == '<' ? TokenType::kControl : TokenType::kNormal);
  }
  data.scores.assign(data.tokens.size(), 0.0f);
  data.bos_id = 258;
  auto made = Tokenizer::create(std::move(data));
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

TEST(Detokenizer, HoldsUnfinishedCharactersBack) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer d(*tokenizer);
  EXPECT_EQ(pushed(d, 0xF0), "");
  EXPECT_EQ(pushed(d, 0x9F), "");
  EXPECT_EQ(pushed(d, 0x98), "");
  EXPECT_EQ(pushed(d, 0x80), "😀");
  EXPECT_EQ(pushed(d, 0xE2), "");
  EXPECT_EQ(pushed(d, 'a'), "\uFFFDa");
  EXPECT_EQ(pushed(d, 0xFF), "\uFFFD");
  EXPECT_EQ(pushed(d, 0xE2), "");
  EXPECT_EQ(pushed(d, 0x82), "");
  EXPECT_EQ(finished(d), "\uFFFD");  // one maximal ill-formed part
  EXPECT_EQ(finished(d), "");
}

TEST(Detokenizer, LeadingSpaceGoesOnlyAtTheStartOfAText) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer text(*tokenizer, Detokenizer::Start::kText);
  EXPECT_EQ(pushed(text, 258), "");
  EXPECT_EQ(pushed(text, 257), "hi");
  EXPECT_EQ(pushed(text, 257), " hi");
  Detokenizer more(*tokenizer, Detokenizer::Start::kContinuation);
  EXPECT_EQ(pushed(more, 257), " hi");
}

TEST(Detokenizer, ShowsControlTokensWhenAsked) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer shown(*tokenizer, Detokenizer::Start::kText, ControlText::kShow);
  EXPECT_EQ(pushed(shown, 258), "<s>");
  Detokenizer hidden(*tokenizer, Detokenizer::Start::kText);
  EXPECT_EQ(pushed(hidden, 258), "");
  EXPECT_EQ(pushed(hidden, -5) + pushed(hidden, 1 << 30), "");
}

}  // namespace
}  // namespace sluice
