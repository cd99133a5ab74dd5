// Anthropic's Messages API over HTTP: the exact order of events, the shape of answers and errors, and what the
// model sees.
#include <gmock/gmock.h>

#include <regex>

#include "server/json.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MessagesTest : public ServedTest {
 protected:
  void SetUp() override { start(); }
  TestResponse post(const std::string& members, const std::string& path = "/v1/messages") {
    return TestClient(server_->port()).post(path, "{" + members + "}");
  }
  TestResponse ask(const std::string& members = "") {
    return post(R"("max_tokens":9,"messages":[{"role":"user","content":"x"}])" +
                (members.empty() ? "" : "," + members));
  }
  std::string seen(size_t request) {
    return model_.tokenizer().decode(model_.scripted.request(request).prompt);
  }
};

std::string steady(const std::string& text) {
  return std::regex_replace(text, std::regex("(msg|toolu)_[a-z0-9]{24}"), "$1_X");
}

constexpr const char* kAdd =
    R"("tools":[{"name":"add","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}])";
constexpr const char* kTwoCalls =
    "Well.\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call> And <tool_call>"
    "{\"name\": \"add\"}</tool_call>";

TEST_F(MessagesTest, Whole) {
  say({"hello", "\xE2\x96\x81world"}, FinishReason::stop);
  const TestResponse r = ask();
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(
      steady(r.body),
      R"({"id":"msg_X","type":"message","role":"assistant","model":"toy","content":[{"type":"text","text":"hello world"}],)"
      R"("stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":19,"cache_creation_input_tokens":0,)"
      R"("cache_read_input_tokens":0,"output_tokens":3}})");
  EXPECT_EQ(r.header("request-id"), r.header("x-request-id"));
  EXPECT_EQ(seen(0), "[user]x\n[assistant]");
}

TEST_F(MessagesTest, EventsOfAStreamInTheirOrder) {
  say({"ABC", "DEF"}, FinishReason::length);
  const TestResponse r = ask(R"("stream":true)");
  EXPECT_EQ(r.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(
      steady(r.body),
      "event: message_start\n"
      R"(data: {"type":"message_start","message":{"id":"msg_X","type":"message","role":"assistant","model":"toy",)"
      R"("content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":19,)"
      R"("cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}})"
      "\n\nevent: content_block_start\n"
      R"(data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})"
      "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ABCDEF"}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":0})"
      "\n\nevent: message_delta\n"
      R"(data: {"type":"message_delta","delta":{"stop_reason":"model_context_window_exceeded","stop_sequence":null},)"
      R"("usage":{"input_tokens":19,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":2}})"
      "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

TEST_F(MessagesTest, AnAnswerWithoutTextHasNoBlock) {
  say({}, FinishReason::stop);
  EXPECT_THAT(ask().body, HasSubstr(R"("content":[],"stop_reason":"end_turn")"));
  EXPECT_THAT(ask(R"("stream":true)").body, testing::Not(HasSubstr("content_block")));
}

TEST_F(MessagesTest, StopReasons) {
  say({"ABC", "DEF", "GH"}, FinishReason::stop);
  EXPECT_THAT(ask(R"("stop_sequences":["x","EF"])").body,
              HasSubstr(R"("text":"ABCD"}],"stop_reason":"stop_sequence","stop_sequence":"EF")"));
  say({"A", "B", "C", "D", "E", "F", "G", "H", "I"}, FinishReason::length);
  EXPECT_THAT(ask().body, HasSubstr(R"("stop_reason":"max_tokens","stop_sequence":null)"));
}

TEST_F(MessagesTest, SystemBlocksAndTurnsReachTheTemplate) {
  say({"A"}, FinishReason::stop);
  post(R"("max_tokens":1,"system":"be","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},)"
       R"({"role":"user","content":"b"},{"role":"assistant","content":"c"}])");
  EXPECT_EQ(seen(0),
            "[system]be\n[user]a\nb\n[assistant]c");  // two turns of one role are one; the last one goes on
  post(
      R"("max_tokens":1,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],)"
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm",)"
      R"("signature":""},{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"tool_result",)"
      R"("tool_use_id":"t","content":[{"type":"text","text":"r"}]},{"type":"text","text":"d"}]}])");
  EXPECT_EQ(
      seen(1),
      "[system]s\n[user]a\n[assistant]b\n[user]<tool_response>\nr\n</tool_response>\n[user]d\n[assistant]");
}

TEST_F(MessagesTest, ToolUseWhole) {
  spell(kTwoCalls, FinishReason::stop);
  EXPECT_THAT(
      steady(ask(kAdd).body),
      HasSubstr(
          R"("content":[{"type":"text","text":"Well."},{"type":"tool_use","id":"toolu_X","name":"add","input":{"a": 1}},)"
          R"({"type":"text","text":" And"},{"type":"tool_use","id":"toolu_X","name":"add","input":{}}],)"
          R"("stop_reason":"tool_use","stop_sequence":null)"));
}

TEST_F(MessagesTest, ToolUseStreamed) {
  spell(kTwoCalls, FinishReason::stop);
  const std::string body = steady(ask(std::string(kAdd) + R"(,"stream":true)").body);
  EXPECT_EQ(
      body.substr(body.find("event: content_block_start")),
      "event: content_block_start\n"
      R"(data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})"
      "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Well."}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":0})"
      "\n\nevent: content_block_start\n"
      R"(data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_X","name":"add","input":{}}})"
      "\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\": 1}"}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":1})"
      "\n\nevent: content_block_start\n"
      R"(data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}})"
      "\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":" And"}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":2})"
      "\n\nevent: content_block_start\n"
      R"(data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_X","name":"add","input":{}}})"
      "\n\nevent: content_block_delta\n"
      R"(data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{}"}})"
      "\n\nevent: content_block_stop\n"
      R"(data: {"type":"content_block_stop","index":3})"
      "\n\nevent: message_delta\n"
      R"(data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},)"
      R"("usage":{"input_tokens":)" +
          std::to_string(model_.scripted.request(0).prompt.size()) +
          R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":)" +
          std::to_string(std::string_view(kTwoCalls).size() + 1) +
          "}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

TEST_F(MessagesTest, InputThatIsNoObjectIsNotLost) {
  spell("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ", FinishReason::length);
  EXPECT_THAT(ask(kAdd).body, HasSubstr(R"("input":{"INVALID_JSON":"{\"a\": "}}],"stop_reason":"m)"));
  spell("<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>", FinishReason::stop);
  EXPECT_THAT(ask(kAdd).body, HasSubstr(R"("input":{"INVALID_JSON":"[1]"}}],"stop_reason":"tool_use")"));
}

TEST_F(MessagesTest, ToolChoice) {
  spell("{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", FinishReason::stop);
  for (const char* choice : {R"({"type":"any"})", R"({"type":"tool","name":"add"})"}) {
    EXPECT_THAT(ask(std::string(kAdd) + R"(,"tool_choice":)" + choice).body,
                HasSubstr(R"("input":{"a": 1}}],"stop_reason":"tool_use")"));
    const size_t last = model_.scripted.submitted() - 1;
    EXPECT_NE(model_.scripted.request(last).constraint, nullptr);
    EXPECT_TRUE(seen(last).ends_with("[assistant]<tool_call>\n"));
  }
  spell(kTwoCalls, FinishReason::stop);
  const TestResponse one =
      ask(std::string(kAdd) + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})");
  EXPECT_THAT(steady(one.body), HasSubstr(R"("input":{"a": 1}}],"stop_reason":"tool_use")"));
  const TestResponse none = ask(std::string(kAdd) + R"(,"tool_choice":{"type":"none"})");
  EXPECT_THAT(none.body, HasSubstr("\"text\":\"Well.\\n<tool_call>"));
  EXPECT_EQ(seen(model_.scripted.submitted() - 1), "[user]x\n[assistant]");
}

TEST_F(MessagesTest, ToolsTheirUsesAndResultsReachTheModel) {
  model_.scripted.info_.context = 4096;
  say({"A"}, FinishReason::stop);
  EXPECT_EQ(
      post(
          std::string(kAdd) +
          R"(,"max_tokens":1,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"text",)"
          R"("text":"t"},{"type":"tool_use","id":"1","name":"add","input":{"a":1}},{"type":"tool_use","id":"2",)"
          R"("name":"add","input":{}}]},{"role":"user","content":[{"type":"text","text":"z"},{"type":"tool_result",)"
          R"("tool_use_id":"1","content":"r"},{"type":"tool_result","tool_use_id":"2","is_error":true,"content":[)"
          R"({"type":"text","text":"no"}]},{"type":"tool_result","tool_use_id":"3"}]}])")
          .status,
      200);
  const std::string prompt = seen(0);
  EXPECT_THAT(
      prompt,
      HasSubstr(R"({"type":"function","function":{"name":"add","description":"d","parameters":{"type":)"));
  EXPECT_THAT(
      prompt,
      HasSubstr("[assistant]t\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>\n"
                "<tool_call>\n{\"name\":\"add\",\"arguments\":{}}\n</tool_call>\n"
                "[user]<tool_response>\nr\n</tool_response>\n<tool_response>\nError:\nno\n</tool_response>\n"
                "<tool_response>\n\n</tool_response>\n[user]z\n[assistant]"));
}

TEST_F(MessagesTest, MistakesInToolsNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools":{})", "'tools' must be"},
      {R"("tools":[1])", "'tools[0]' must be an object"},
      {R"("tools":[{"name":"f"}])", "'tools[0].input_schema' is required"},
      {R"("tools":[{"name":"f","input_schema":[]}])", "'tools[0].input_schema' must be"},
      {R"("tools":[{"name":"a b","input_schema":{}}])", "'tools[0].name' must be"},
      {R"("tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}])",
       "'tools[1].name' is the name"},
      {R"("tools":[{"name":"f","name":"g","input_schema":{}}])", "'tools[0].name' is given more than once"},
      {R"("tools":[{"type":"bash_20250124","name":"bash"}])", "'tools[0].type' must be"},
      {R"("tools":[{"name":"f","input_schema":{"not":{}}}],"tool_choice":{"type":"any"})",
       "'tools[0].input_schema.not'"},
      {R"("tool_choice":"any")", "'tool_choice' must be an object"},
      {R"("tool_choice":{"type":"required"})", "'tool_choice.type' must be"},
      {R"("tool_choice":{"type":"any"})", "'tool_choice' needs tools"},
      {R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool"})",
       "'tool_choice.name' is required"},
      {R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})",
       "'tool_choice.name' is not"},
      {R"("tool_choice":{"type":"auto","disable_parallel_tool_use":1})",
       "'tool_choice.disable_parallel_tool_use' must"},
  };
  for (const auto& [members, message] : cases) {
    const TestResponse r = ask(members);
    EXPECT_EQ(r.status, 400) << members;
    EXPECT_THAT(r.body, HasSubstr(message)) << members;
  }
  EXPECT_THAT(post(R"("max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
                   R"({"type":"tool_use","id":"1","name":"f","input":{}},{"type":"text","text":"So"}]}])")
                  .body,
              HasSubstr("'messages[1].content[0]' is a call without a tool_result"));
  say({"A"}, FinishReason::stop);
  EXPECT_EQ(ask(R"("tools":[{"name":"f","input_schema":{},"cache_control":{},"defer_loading":true}])")
                .header("x-sluice-ignored"),
            "tools.cache_control, tools.defer_loading");
}

TEST_F(MessagesTest, AFormHoldsTheAnswer) {
  spell("{}", FinishReason::stop);
  const TestResponse r =
      ask(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}},"effort":"low"})");
  EXPECT_EQ(r.header("x-sluice-ignored"), "output_config.effort");
  EXPECT_NE(model_.scripted.request(0).constraint, nullptr);
  EXPECT_THAT(ask(R"("output_config":{"format":{"type":"json_schema"}})").body,
              HasSubstr("output_config.format.schema"));
}

TEST_F(MessagesTest, CountsAsTheRequestItselfDoes) {
  EXPECT_EQ(post(R"("messages":[{"role":"user","content":"x"}])", "/v1/messages/count_tokens").body,
            R"({"input_tokens":19})");
  EXPECT_EQ(model_.scripted.submitted(), 0u);
}

TEST_F(MessagesTest, RefusesByNameInItsOwnShape) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("messages":[{"role":"user","content":"x"}])", "'max_tokens' is required."},
      {R"("max_tokens":4)", "'messages' is required."},
      {R"("max_tokens":4,"messages":[])", "'messages' must hold at least one message."},
      {R"("max_tokens":-1,"messages":[{"role":"user","content":"x"}])", "'max_tokens' must be"},
      {R"("max_tokens":1,"messages":[{"role":"system","content":"x"}])", "'messages[0].role' must be"},
      {R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}])",
       "'messages[0].content[0].type'"},
      {R"("max_tokens":1,"messages":[{"role":"user","content":"x"}],"n":2)", "'n' is not supported"},
      {R"("max_tokens":1,"messages":[{"role":"user","content":"x"}],"stop_sequences":"x")",
       "'stop_sequences' must be"},
      {R"("max_tokens":1e999)", "out of range"},
  };
  for (const auto& [members, message] : cases) {
    const TestResponse r = post(members);
    EXPECT_EQ(r.status, 400) << members;
    auto d = JsonDocument::parse(r.body);
    ASSERT_TRUE(d.ok());
    EXPECT_EQ(d->root().find("type")->string(), "error");
    EXPECT_EQ(d->root().find("error")->find("type")->string(), "invalid_request_error");
    EXPECT_THAT(std::string(*d->root().find("error")->find("message")->string()), HasSubstr(message));
    EXPECT_EQ(d->root().find("request_id")->string(), r.header("request-id"));
  }
  EXPECT_THAT(ask(R"("model":"none")").body, HasSubstr(R"("type":"not_found_error")"));
}

TEST_F(MessagesTest, FailuresBeforeAndInAStream) {
  TokenEvent failed;
  failed.finish = FinishReason::cancelled;
  model_.scripted.script = [&](const Request&) { return std::vector<TokenEvent>{failed}; };
  const TestResponse overloaded = ask();
  EXPECT_EQ(overloaded.status, 529);
  EXPECT_THAT(overloaded.body, HasSubstr(R"("type":"overloaded_error")"));
  failed.finish = FinishReason::failed;
  model_.scripted.script = nullptr;
  TestClient client(server_->port());
  client.send(post_text("/v1/messages",
                        R"({"max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]})"));
  model_.scripted.wait_submitted(2);
  model_.scripted.emit(1, model_.token("A"));
  client.read_until(R"("text":"A"}})");
  model_.scripted.emit(1, failed);
  EXPECT_THAT(client.read_until(R"("request_id")"),
              HasSubstr("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""));
  EXPECT_EQ(client.read_until("message_stop"), "");
}

TEST_F(MessagesTest, SaysWhatItIgnores) {
  say({"A"}, FinishReason::stop);
  const TestResponse r = ask(R"("metadata":{"user_id":"u"},"service_tier":"auto","frobnicate":1,"bad name":2)");
  EXPECT_EQ(r.header("x-sluice-ignored"), "metadata, service_tier, frobnicate");
}

}  // namespace
}  // namespace sluice
