// Thoughts before an answer, on each API that takes messages: told apart, streamed, counted, given back.
#include <gmock/gmock.h>

#include <regex>

#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content "
    "}}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% if open %}<think>\n{% endif %}{% "
    "endif %}";

class ReasoningTest : public ServedTest {
 protected:
  void SetUp() override {
    model_.set_template(kTemplate);
    start();
    spell("<think>\nHm.\n</think>\n\nYes.", FinishReason::stop);
  }
  std::string post(const std::string& path, const std::string& members) {
    return std::regex_replace(TestClient(server_->port()).post(path, "{" + members + "}").body,
                              std::regex("(msg|rs|toolu)_[a-z0-9]{24}"), "$1_X");
  }
  std::string chat(const std::string& more = "") {
    return post("/v1/chat/completions", R"("messages":[{"role":"user","content":"x"}])" + more);
  }
  std::string message(const std::string& more = "") {
    return post("/v1/messages", R"("max_tokens":99,"messages":[{"role":"user","content":"x"}])" + more);
  }
  std::string seen() {
    return model_.tokenizer().decode(model_.scripted.request(model_.scripted.submitted() - 1).prompt);
  }
};

TEST_F(ReasoningTest, Chat) {
  const std::string whole = chat();
  EXPECT_THAT(whole, HasSubstr(R"("content":"Yes.","refusal":null,"reasoning_content":"Hm."})"));
  // Its 7 bytes of opening mark are known as a thought at the last one; the closing mark counts until it ends.
  EXPECT_THAT(whole, HasSubstr(R"("completion_tokens_details":{"reasoning_tokens":14})"));
  const std::string streamed = chat(R"(,"stream":true)");
  EXPECT_THAT(streamed, HasSubstr(R"("delta":{"reasoning_content":"Hm.","content":"Yes."})"));
  EXPECT_THAT(streamed, Not(HasSubstr("think")));
}

TEST_F(ReasoningTest, AThoughtThatThePromptOpens) {
  spell("Hm.\n</think>\n\nYes.", FinishReason::stop);
  EXPECT_THAT(chat(R"(,"chat_template_kwargs":{"open":true})"),
              HasSubstr(R"("content":"Yes.","refusal":null,"reasoning_content":"Hm."})"));
  spell("Hm.", FinishReason::length);
  EXPECT_THAT(chat(R"(,"chat_template_kwargs":{"open":true})"),
              HasSubstr(R"("content":"","refusal":null,"reasoning_content":"Hm."})"));
}

TEST_F(ReasoningTest, WhatIsHeldToAFormHasNone) {
  spell("{}", FinishReason::stop);
  EXPECT_THAT(chat(R"(,"chat_template_kwargs":{"open":true},"response_format":{"type":"json_object"})"),
              HasSubstr(R"("content":"{}","refusal":null})"));
  EXPECT_EQ(seen(), "[user]x\n[assistant]<think>\n\n</think>\n\n");
}

TEST_F(ReasoningTest, AnAnswerWithoutThoughtsIsAsItWas) {
  spell("Yes <think>x</think>", FinishReason::stop);
  EXPECT_THAT(chat(), HasSubstr(R"("content":"Yes <think>x</think>","refusal":null})"));
  EXPECT_THAT(chat(), Not(HasSubstr("reasoning")));
}

TEST_F(ReasoningTest, TheSettingDecides) {
  ServerConfig config;
  config.reasoning_parser = "none";
  start(config);
  EXPECT_THAT(chat(), HasSubstr(R"("content":"<think>\nHm.\n</think>\n\nYes.")"));
  config.reasoning_parser = "think";
  model_.set_template("{% for m in messages %}{{ m.content }}{% endfor %}");
  start(config);
  EXPECT_THAT(chat(), HasSubstr(R"("reasoning_content":"Hm.")"));
}

TEST_F(ReasoningTest, Messages) {
  EXPECT_THAT(message(), HasSubstr(R"("content":[{"type":"thinking","thinking":"Hm.","signature":""},)"
                                   R"({"type":"text","text":"Yes."}],"stop_reason":"end_turn")"));
  const std::string body = message(R"(,"stream":true)");
  const size_t begin = body.find("event: content_block_start");
  EXPECT_EQ(
      body.substr(begin, body.find("event: message_delta") - begin),
      "event: content_block_start\n"
      R"(data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})"
      "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}})"
      "\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":""}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":0})"
      "\n\nevent: content_block_start\n"
      R"(data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})"
      "\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Yes."}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":1})"
      "\n\n");
}

TEST_F(ReasoningTest, ThoughtsThenACall) {
  spell("<think>Hm.</think><tool_call>{\"name\": \"f\"}</tool_call>", FinishReason::stop);
  EXPECT_THAT(
      message(R"(,"tools":[{"name":"f","input_schema":{}}])"),
      HasSubstr(R"({"type":"thinking","thinking":"Hm.","signature":""},{"type":"tool_use","id":"toolu_X",)"
                R"("name":"f","input":{}}],"stop_reason":"tool_use")"));
}

TEST_F(ReasoningTest, Responses) {
  const std::string whole = post("/v1/responses", R"("input":"x")");
  EXPECT_THAT(whole, HasSubstr(R"("output":[{"id":"rs_X","type":"reasoning","status":"completed","summary":[],)"
                               R"("content":[{"type":"reasoning_text","text":"Hm."}]},{"id":"msg_X",)"));
  EXPECT_THAT(whole, HasSubstr(R"("output_tokens_details":{"reasoning_tokens":14})"));
  const std::string body = post("/v1/responses", R"("input":"x","stream":true)");
  const size_t begin = body.find("event: response.output_item.added");
  EXPECT_THAT(
      body.substr(begin),
      testing::StartsWith(
          "event: response.output_item.added\n"
          R"(data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"rs_X",)"
          R"("type":"reasoning","status":"in_progress","summary":[],"content":[]}})"
          "\n\nevent: response.content_part.added\n"
          R"(data: {"type":"response.content_part.added","sequence_number":3,"item_id":"rs_X","output_index":0,)"
          R"("content_index":0,"part":{"type":"reasoning_text","text":""}})"
          "\n\nevent: response.reasoning_text.delta\n"
          R"(data: {"type":"response.reasoning_text.delta","sequence_number":4,"item_id":"rs_X","output_index":0,)"
          R"("content_index":0,"delta":"Hm."})"
          "\n\nevent: response.reasoning_text.done\n"
          R"(data: {"type":"response.reasoning_text.done","sequence_number":5,"item_id":"rs_X","output_index":0,)"
          R"("content_index":0,"text":"Hm."})"
          "\n\nevent: response.content_part.done\n"
          R"(data: {"type":"response.content_part.done","sequence_number":6,"item_id":"rs_X","output_index":0,)"
          R"("content_index":0,"part":{"type":"reasoning_text","text":"Hm."}})"
          "\n\nevent: response.output_item.done\n"));
}

// Which of them the model sees again is the template's to say; this one shows them all.
TEST_F(ReasoningTest, ThoughtsOfEarlierTurnsReachTheTemplate) {
  const std::string expected = "[user]x\n[assistant]<think>Hm.</think>Yes.\n[user]y\n[assistant]";
  post(
      "/v1/chat/completions",
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Yes.","reasoning_content":"Hm."},)"
      R"({"role":"user","content":"y"}])");
  EXPECT_EQ(seen(), expected);
  post(
      "/v1/messages",
      R"("max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking",)"
      R"("thinking":"Hm.","signature":""},{"type":"redacted_thinking","data":"z"},{"type":"text","text":"Yes."}]},)"
      R"({"role":"user","content":"y"}])");
  EXPECT_EQ(seen(), expected);
  post(
      "/v1/responses",
      R"("input":[{"role":"user","content":"x"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text",)"
      R"("text":"Hm."}]},{"role":"assistant","content":"Yes."},{"role":"user","content":"y"}])");
  EXPECT_EQ(seen(), expected);
  EXPECT_THAT(
      post("/v1/chat/completions", R"("messages":[{"role":"assistant","content":"a","reasoning_content":[]}])"),
      HasSubstr(R"("param":"messages[0].reasoning_content")"));
}

}  // namespace
}  // namespace sluice
