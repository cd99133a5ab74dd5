// Thoughts told from answers, however the text is cut.
#include "text/reasoning.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

struct Said {
  std::string thoughts, answer;
  bool operator==(const Said&) const = default;
};

Said parsed(std::string_view text, Reasoning reasoning, size_t step) {
  ReasoningParser parser(reasoning);
  Said said;
  for (size_t at = 0; at < text.size(); at += step)
    parser.push(text.substr(at, step), said.thoughts, said.answer);
  parser.finish(said.thoughts, said.answer);
  return said;
}

TEST(Reasoning, IsToldFromTheAnswer) {
  struct Case {
    Reasoning reasoning;
    std::string_view text, thoughts, answer;
  };
  const Case cases[] = {
      {Reasoning::begins, "<think>\nHm,  well.\n</think>\n\nYes.\n", "Hm,  well.", "Yes.\n"},
      {Reasoning::begins, "\n <think>a</think>b", "a", "b"},
      {Reasoning::begins, "<think>\n\n</think>\n\nYes", "", "Yes"},
      {Reasoning::begins, "Yes <think>a</think>", "", "Yes <think>a</think>"},
      {Reasoning::begins, " \nYes", "", " \nYes"},
      {Reasoning::begins, "<thin", "", "<thin"},
      {Reasoning::begins, "<think>a<b></thi<</think>c</think>", "a<b></thi<", "c</think>"},
      {Reasoning::begins, "<think>a <think> b</think>c", "a <think> b", "c"},
      {Reasoning::begins, "<think>cut short \n", "cut short", ""},
      {Reasoning::begins, "<think>cut </thi", "cut </thi", ""},
      {Reasoning::begins, "", "", ""},
      {Reasoning::opened, "a\n</think>\nb", "a", "b"},
      {Reasoning::opened, "\n</think>b", "", "b"},
      {Reasoning::opened, "never ends", "never ends", ""},
      {Reasoning::none, "<think>a</think>b", "", "<think>a</think>b"},
  };
  for (const Case& c : cases) {
    for (size_t step = 1; step <= c.text.size() + 1; ++step)
      EXPECT_EQ(parsed(c.text, c.reasoning, step), (Said{std::string(c.thoughts), std::string(c.answer)}))
          << c.text << " in steps of " << step;
  }
}

TEST(Reasoning, FollowsFromTheTemplate) {
  EXPECT_TRUE(template_shows_reasoning("{{ content.split('</think>')[-1] }}"));
  EXPECT_FALSE(template_shows_reasoning("{{ content }}"));
}

}  // namespace
}  // namespace sluice
