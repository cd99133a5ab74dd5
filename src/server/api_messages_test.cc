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
  return std::regex_replace(text, std::regex("msg_[a-z0-9]{24}"), "msg_X");
}

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
  EXPECT_EQ(seen(1), "[system]s\n[user]a\n[assistant]b\n[tool]r\n[user]d\n[assistant]");
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
