// Answers held to a form, and tool calls, over HTTP.
#include <gmock/gmock.h>

#include <regex>

#include "server/testing/api_test_case.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using ApiFormsTest = ApiTestCase;

TEST_F(ApiFormsTest, AFormReachesTheEngineAsAConstraintOfEachChoice) {
  say({"hello"}, FinishReason::stop);
  EXPECT_EQ(chat(R"("guided_choice":["hello"],"n":2)").status, 200);
  ASSERT_EQ(model_.scripted.submitted(), 2u);
  const auto first = model_.scripted.request(0).constraint, second = model_.scripted.request(1).constraint;
  ASSERT_TRUE(first && second);
  EXPECT_NE(first, second);
  std::vector<uint32_t> mask(size_t(model_.tokenizer().size() + 31) / 32);
  EXPECT_EQ(first->advance(-1, mask), TokenConstraint::State::kOpen);
  const auto allows = [&](int32_t id) { return mask[size_t(id) / 32] >> (id % 32) & 1; };
  EXPECT_TRUE(allows(model_.id("hello")));
  EXPECT_FALSE(allows(model_.id("ABC")));
  EXPECT_EQ(first->advance(model_.id("hello"), mask), TokenConstraint::State::kOpen);
  EXPECT_TRUE(allows(2)) << "the end";
  chat();
  EXPECT_EQ(model_.scripted.request(2).constraint, nullptr);
}

TEST_F(ApiFormsTest, AFormThatDoesNotCompileIsRefusedByItsMember) {
  expect_error(chat(R"("guided_regex":"(a")"), 400, "guided_regex");
  expect_error(chat(R"("guided_regex":"[z-a]")"), 400, "guided_regex");
  expect_error(complete(R"("prompt":"a","grammar":"root ::= [")"), 400, "grammar");
  expect_error(complete(R"("prompt":"a","guided_regex":"a","ignore_eos":true)"), 400, "ignore_eos");
  EXPECT_EQ(model_.scripted.submitted(), 0u);
}

constexpr const char* kAddTool =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}])";

TEST_F(ApiFormsTest, ToolCallsWholeAndStreamed) {
  const std::string text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
  spell(text, FinishReason::stop);
  const auto without_ids = [](std::string s) {
    return std::regex_replace(s, std::regex(R"("id":"call_[a-z0-9]{24}")"), R"("id":"call_X")");
  };
  EXPECT_THAT(
      without_ids(chat(kAddTool).body),
      HasSubstr(
          R"("message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_X","type":"function",)"
          R"("function":{"name":"add","arguments":"{\"a\": 1}"}}]},"logprobs":null,"finish_reason":"tool_calls")"));
  const std::string streamed = without_ids(chat(std::string(kAddTool) + R"(,"stream":true)").body);
  EXPECT_THAT(
      streamed,
      HasSubstr(
          R"("delta":{"tool_calls":[{"index":0,"id":"call_X","type":"function","function":{"name":"add","arguments":""}}]})"));
  EXPECT_THAT(streamed,
              HasSubstr(R"("delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\": 1}"}}]})"));
  EXPECT_THAT(streamed, HasSubstr(R"("finish_reason":"tool_calls")"));
  // Without tools it is text.
  EXPECT_THAT(chat().body, HasSubstr(R"("content":"<tool_call>)"));
}

TEST_F(ApiFormsTest, ACallThatIsCutShortEndsWithLength) {
  spell("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"", FinishReason::length);
  EXPECT_THAT(chat(kAddTool).body, HasSubstr(R"("finish_reason":"length")"));
  // By the model itself, or by a stop text.
  spell("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"", FinishReason::stop);
  EXPECT_THAT(chat(kAddTool).body, HasSubstr(R"("finish_reason":"stop")"));
  spell("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", FinishReason::stop);
  EXPECT_THAT(chat(std::string(kAddTool) + R"(,"stop":"\"a\"")").body, HasSubstr(R"("finish_reason":"stop")"));
}

TEST_F(ApiFormsTest, AForcedCallOpensThePromptAndHoldsTheAnswer) {
  spell("{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", FinishReason::stop);
  const TestResponse r = chat(std::string(kAddTool) + R"(,"tool_choice":"required")");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(r.body, HasSubstr(R"("finish_reason":"tool_calls")"));
  const Request request = model_.scripted.request(0);
  EXPECT_NE(request.constraint, nullptr);
  EXPECT_TRUE(model_.tokenizer().decode(request.prompt).ends_with("[assistant]<tool_call>\n"));
}

// The toy's template knows no tools: they are written into the messages.
TEST_F(ApiFormsTest, ToolsAndTheirHistoryReachATemplateThatKnowsNone) {
  const TestResponse r = post(
      "/apply-template",
      std::string(
          R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1",)"
          R"("type":"function","function":{"name":"add","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"7"}],)") +
          kAddTool + "}");
  EXPECT_EQ(r.status, 200) << r.body;
  for (const char* part : {R"(\"name\":\"add\")", "<tool_call>", "<tool_response>\\n7\\n</tool_response>"})
    EXPECT_THAT(r.body, HasSubstr(part));
}

}  // namespace
}  // namespace sluice
