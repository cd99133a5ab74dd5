#include "server/choice.h"

#include <gmock/gmock.h>

#include "server/testing/toy_model.h"

namespace sluice {
namespace {

class ChoiceTest : public testing::Test {
 protected:
  Choice make(bool keep_tokens = true, int offset = 0) {
    return Choice(0, model_.tokenizer(), options_, keep_tokens, offset);
  }
  // Pushes the events until the choice ends, and joins all that it gave.
  ChoiceDelta run(Choice& choice, const std::vector<TokenEvent>& events) {
    ChoiceDelta all;
    for (const TokenEvent& event : events) {
      const bool ended = choice.push(event);
      ChoiceDelta delta = choice.take();
      pieces_.push_back(delta.text);
      all.text += delta.text;
      for (auto& token : delta.tokens) all.tokens.push_back(token);
      if (ended) break;
    }
    return all;
  }
  std::vector<std::string> names(const ChoiceDelta& delta) {
    std::vector<std::string> out;
    for (const auto& token : delta.tokens)
      out.emplace_back(model_.tokenizer().piece(token.id, ControlText::kShow));
    return out;
  }

  ToyModel model_;
  GenerationOptions options_;
  std::vector<std::string> pieces_;
};

TEST_F(ChoiceTest, GivesTextTokenByToken) {
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({"hello", "\xE2\x96\x81world", "."}, FinishReason::length));
  EXPECT_THAT(pieces_, testing::ElementsAre("hello", " world", "."));
  EXPECT_EQ(choice.finish(), FinishReason::length);
  EXPECT_EQ(choice.completion_tokens(), 3);
  EXPECT_EQ(all.tokens.size(), 3u);
  EXPECT_EQ(all.tokens[1].text_offset, 5);
  EXPECT_EQ(all.tokens[2].text_offset, 11);
}

TEST_F(ChoiceTest, TheEndTokenCountsButHasNoText) {
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({"hello"}, FinishReason::stop));
  EXPECT_EQ(all.text, "hello");
  EXPECT_EQ(choice.finish(), FinishReason::stop);
  EXPECT_EQ(choice.completion_tokens(), 2);
  EXPECT_THAT(names(all), testing::ElementsAre("hello", "<|im_end|>"));
  EXPECT_TRUE(all.tokens[1].ends);
  EXPECT_EQ(all.tokens[1].text_offset, 5);
  EXPECT_EQ(choice.stop_id(), -1);
}

TEST_F(ChoiceTest, ACharacterOfSeveralTokensComesWholeWithAllOfThem) {
  Choice choice = make();
  std::vector<ChoiceDelta> deltas;
  for (const char* byte : {"<0xF0>", "<0x9F>", "<0xA6>", "<0x80>"}) {
    EXPECT_FALSE(choice.push(model_.token(byte)));
    deltas.push_back(choice.take());
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(deltas[size_t(i)].empty());
  EXPECT_EQ(deltas[3].text, "\xF0\x9F\xA6\x80");
  ASSERT_EQ(deltas[3].tokens.size(), 4u);
  for (const auto& token : deltas[3].tokens) EXPECT_EQ(token.text_offset, 0);
}

TEST_F(ChoiceTest, AnUnfinishedCharacterAtTheEndBecomesAReplacementMark) {
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({"a", "<0xF0>", "<0x9F>"}, FinishReason::length));
  EXPECT_EQ(all.text, "a\xEF\xBF\xBD");
  EXPECT_EQ(all.tokens.size(), 3u);
}

TEST_F(ChoiceTest, NothingOfAStopStringLeaks) {
  options_.stop = {"EFG"};
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({"ABC", "DEF", "GH", "I", "J"}, FinishReason::stop));
  EXPECT_THAT(pieces_, testing::ElementsAre("ABC", "D", ""));
  EXPECT_EQ(all.text, "ABCD");
  EXPECT_EQ(choice.finish(), FinishReason::stop);
  EXPECT_EQ(choice.stop_text(), "EFG");
  EXPECT_EQ(choice.completion_tokens(), 3);                     // all that were sampled, up to the stop
  EXPECT_THAT(names(all), testing::ElementsAre("ABC", "DEF"));  // wholly or partly shown
}

TEST_F(ChoiceTest, TheStopStringIsKeptWhereAsked) {
  options_.stop = {"EFG"};
  options_.include_stop_text = true;
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({"ABC", "DEF", "GH", "I"}, FinishReason::stop));
  EXPECT_EQ(all.text, "ABCDEFG");
  EXPECT_THAT(names(all), testing::ElementsAre("ABC", "DEF", "GH"));
}

TEST_F(ChoiceTest, HeldTextComesWhenTheAnswerEndsOtherwise) {
  options_.stop = {"YYYZ"};
  for (FinishReason finish : {FinishReason::length, FinishReason::stop}) {
    Choice choice = make();
    const ChoiceDelta all = run(choice, model_.says({"Y", "Y", "Y"}, finish));
    EXPECT_EQ(all.text, "YYY");
    EXPECT_EQ(choice.finish(), finish);
    EXPECT_EQ(all.tokens.size(), finish == FinishReason::stop ? 4u : 3u);
  }
}

TEST_F(ChoiceTest, StopStringsMayBeginInsideCharactersOfSeveralTokens) {
  options_.stop = {"\xF0\x9F\xA6\x80"};
  Choice choice = make();
  const ChoiceDelta all =
      run(choice, model_.says({"a", "<0xE6>", "<0xBC>", "<0xA2>", "<0xF0>", "<0x9F>", "<0xA6>", "<0x80>", "c"},
                              FinishReason::stop));
  EXPECT_EQ(all.text, "a\xE6\xBC\xA2");
  EXPECT_EQ(all.tokens.size(), 4u);
}

TEST_F(ChoiceTest, StopStringsWaitForMinTokens) {
  options_.stop = {"Y"};
  options_.min_tokens = 2;
  Choice choice = make();
  EXPECT_EQ(run(choice, model_.says({"Y", "Y", "Y", "Y"}, FinishReason::length)).text, "YY");
  EXPECT_EQ(choice.completion_tokens(), 3);
}

TEST_F(ChoiceTest, AStopTokenOfTheClientIsNamed) {
  options_.stop_ids = {model_.id("Y")};
  Choice choice = make();
  TokenEvent event = model_.token("Y", FinishReason::stop);
  event.stop_id = event.id;
  const ChoiceDelta all = run(choice, {model_.token("a"), event});
  EXPECT_EQ(all.text, "a");
  EXPECT_EQ(choice.stop_id(), event.id);
}

TEST_F(ChoiceTest, AnAnswerWithoutTokens) {
  Choice choice = make();
  const ChoiceDelta all = run(choice, model_.says({}, FinishReason::length));
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(choice.completion_tokens(), 0);
  EXPECT_EQ(choice.finish(), FinishReason::length);
}

TEST_F(ChoiceTest, OffsetsGoOnAfterAnEchoedPrompt) {
  Choice choice = make(true, 7);
  EXPECT_EQ(run(choice, model_.says({"a", "b"}, FinishReason::length)).tokens[1].text_offset, 8);
}

// However the text is cut into tokens and whatever stops there are: the pieces joined are the text up to the
// stop, each piece is valid, and the tokens given are those that begin inside it.
TEST_F(ChoiceTest, RandomTokensAndStops) {
  uint32_t state = 1;
  const auto random = [&](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  const char* words[] = {"A", "B", "ABC", "DEF", "GH", "<0xE6>", "<0xBC>", "<0xA2>", "<|im_end|>", "."};
  for (int round = 0; round < 2000; ++round) {
    options_.stop.clear();
    for (uint32_t i = 0; i < random(3); ++i)
      options_.stop.push_back(std::string("ABCDEFGH.").substr(random(6), 1 + random(3)));
    std::vector<std::string_view> tokens;
    for (uint32_t i = 0; i < 1 + random(12); ++i) tokens.push_back(words[random(10)]);
    std::string full;
    {
      GenerationOptions plain;
      Choice choice(0, model_.tokenizer(), plain, false, 0);
      full = run(choice, model_.says(tokens, FinishReason::length)).text;
    }
    size_t cut = std::string::npos, end = std::string::npos;
    for (size_t e = 1; e <= full.size() && end == std::string::npos; ++e) {
      for (const auto& stop : options_.stop) {
        if (e >= stop.size() && full.compare(e - stop.size(), stop.size(), stop) == 0)
          cut = std::min(cut, e - stop.size()), end = e;
      }
    }
    Choice choice = make();
    const ChoiceDelta all = run(choice, model_.says(tokens, FinishReason::length));
    EXPECT_EQ(all.text, full.substr(0, cut));
    EXPECT_EQ(choice.finish(), end == std::string::npos ? FinishReason::length : FinishReason::stop);
    for (const auto& token : all.tokens) EXPECT_LE(token.text_offset, code_points(all.text));
    if (cut == std::string::npos) {
      EXPECT_EQ(all.tokens.size(), tokens.size());
    }
  }
}

}  // namespace
}  // namespace sluice
