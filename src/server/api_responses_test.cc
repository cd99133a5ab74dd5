// OpenAI's Responses API over HTTP: the object, the order of events, and what is kept for whom.
#include <gmock/gmock.h>

#include <regex>

#include "server/json.h"
#include "server/response_store.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ResponsesTest : public ServedTest {
 protected:
  void SetUp() override { start({}); }
  TestResponse post(const std::string& members, const std::string& headers = "") {
    return TestClient(server_->port()).post("/v1/responses", "{" + members + "}", headers);
  }
  TestResponse request(const std::string& method, const std::string& path, const std::string& headers = "") {
    TestClient client(server_->port());
    client.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return client.read_response();
  }
  std::string seen() {
    return model_.tokenizer().decode(model_.scripted.request(model_.scripted.submitted() - 1).prompt);
  }
};

std::string id_of(const TestResponse& r) {
  auto d = JsonDocument::parse(r.body);
  return std::string(*d->root().find("id")->string());
}

TEST_F(ResponsesTest, Whole) {
  say({"hello"}, FinishReason::stop);
  const TestResponse r = post(R"("input":"x","instructions":"be","metadata":{"a":"b"})");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(seen(), "[system]be\n[user]x\n[assistant]");
  const std::string steady =
      std::regex_replace(std::regex_replace(r.body, std::regex("(resp|msg)_[a-z0-9]{24}"), "$1_X"),
                         std::regex(R"("created_at":\d+)"), "T");
  EXPECT_EQ(
      steady,
      R"({"id":"resp_X","object":"response",T,"status":"completed","background":false,"error":null,)"
      R"("incomplete_details":null,"instructions":"be","max_output_tokens":null,"model":"toy","output":[{"id":"msg_X",)"
      R"("type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"hello",)"
      R"("annotations":[],"logprobs":[]}]}],"parallel_tool_calls":true,"previous_response_id":null,)"
      R"("reasoning":{"effort":null,"summary":null},"service_tier":"default","store":false,"temperature":1,)"
      R"("text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1,)"
      R"("truncation":"disabled","usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,)"
      R"("output_tokens_details":{"reasoning_tokens":0},"total_tokens":32},"user":null,"metadata":{"a":"b"}})");
}

TEST_F(ResponsesTest, EventsOfAStreamInTheirOrder) {
  say({"ABC", "DEF"}, FinishReason::length);
  const TestResponse r = post(R"("input":"x","stream":true)");
  std::vector<std::string> types, deltas;
  int64_t sequence = 0;
  for (const std::string& payload : sse_payloads(r.body)) {
    auto d = JsonDocument::parse(payload);
    ASSERT_TRUE(d.ok()) << payload;
    types.emplace_back(*d->root().find("type")->string());
    EXPECT_THAT(r.body, HasSubstr("event: " + types.back() + "\n"));
    EXPECT_EQ(d->root().find("sequence_number")->integer(), sequence++);
  }
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                                 "response.content_part.added", "response.output_text.delta",
                                 "response.output_text.done", "response.content_part.done",
                                 "response.output_item.done", "response.incomplete"));
  EXPECT_THAT(r.body, HasSubstr(R"("incomplete_details":{"reason":"max_output_tokens"})"));
  EXPECT_THAT(r.body, HasSubstr(R"("delta":"ABCDEF")"));
}

TEST_F(ResponsesTest, ItemsGivenInlineReachTheTemplate) {
  say({"A"}, FinishReason::stop);
  post(
      R"("input":[{"role":"developer","content":"d"},{"type":"message","role":"user","content":[{"type":"input_text",)"
      R"("text":"a"}]},{"type":"reasoning","summary":[]},{"id":"msg_1","type":"message","role":"assistant",)"
      R"("status":"completed","content":[{"type":"output_text","text":"b","annotations":[]}]},)"
      R"({"type":"function_call_output","call_id":"c","output":"r"},{"role":"user","content":"e"}])");
  EXPECT_EQ(
      seen(),
      "[system]d\n[user]a\n[assistant]b\n[user]<tool_response>\nr\n</tool_response>\n[user]e\n[assistant]");
}

constexpr const char* kAdd =
    R"("tools":[{"type":"function","name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}])";

std::string steady(const std::string& text) {
  return std::regex_replace(std::regex_replace(text, std::regex("(resp|msg|fc|call)_[a-z0-9]{24}"), "$1_X"),
                            std::regex(R"("created_at":\d+)"), "T");
}

TEST_F(ResponsesTest, FunctionCallsWhole) {
  spell("Well. <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", FinishReason::stop);
  const std::string body = steady(post(R"("input":"x","parallel_tool_calls":false,)" + std::string(kAdd)).body);
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("output":[{"id":"msg_X","type":"message","status":"completed","role":"assistant","content":[)"
          R"({"type":"output_text","text":"Well.","annotations":[],"logprobs":[]}]},{"id":"fc_X","type":"function_call",)"
          R"("status":"completed","call_id":"call_X","name":"add","arguments":"{\"a\": 1}"}],"parallel_tool_calls":false)"));
  EXPECT_THAT(body, HasSubstr(R"("tool_choice":"auto",)" + std::string(kAdd)));
}

TEST_F(ResponsesTest, FunctionCallsStreamed) {
  spell("A<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", FinishReason::stop);
  const std::string body = steady(post(R"("input":"x","stream":true,)" + std::string(kAdd)).body);
  const size_t begin = body.find("event: response.output_item.added");
  EXPECT_EQ(
      body.substr(begin, body.find("event: response.completed") - begin),
      "event: response.output_item.added\n"
      R"(data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_X","type":"message",)"
      R"("status":"in_progress","role":"assistant","content":[]}})"
      "\n\nevent: response.content_part.added\n"
      R"(data: {"type":"response.content_part.added","sequence_number":3,"item_id":"msg_X","output_index":0,"content_index":0,)"
      R"("part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}})"
      "\n\nevent: response.output_text.delta\n"
      R"(data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_X","output_index":0,"content_index":0,)"
      R"("delta":"A","logprobs":[]})"
      "\n\nevent: response.output_text.done\n"
      R"(data: {"type":"response.output_text.done","sequence_number":5,"item_id":"msg_X","output_index":0,"content_index":0,)"
      R"("text":"A","logprobs":[]})"
      "\n\nevent: response.content_part.done\n"
      R"(data: {"type":"response.content_part.done","sequence_number":6,"item_id":"msg_X","output_index":0,"content_index":0,)"
      R"("part":{"type":"output_text","text":"A","annotations":[],"logprobs":[]}})"
      "\n\nevent: response.output_item.done\n"
      R"(data: {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"msg_X","type":"message",)"
      R"("status":"completed","role":"assistant","content":[{"type":"output_text","text":"A","annotations":[],"logprobs":[]}]}})"
      "\n\nevent: response.output_item.added\n"
      R"(data: {"type":"response.output_item.added","sequence_number":8,"output_index":1,"item":{"id":"fc_X",)"
      R"("type":"function_call","status":"in_progress","call_id":"call_X","name":"add","arguments":""}})"
      "\n\nevent: response.function_call_arguments.delta\n"
      R"(data: {"type":"response.function_call_arguments.delta","sequence_number":9,"item_id":"fc_X","output_index":1,)"
      R"("delta":"{\"a\": 1}"})"
      "\n\nevent: response.function_call_arguments.done\n"
      R"(data: {"type":"response.function_call_arguments.done","sequence_number":10,"item_id":"fc_X","output_index":1,)"
      R"("name":"add","arguments":"{\"a\": 1}"})"
      "\n\nevent: response.output_item.done\n"
      R"(data: {"type":"response.output_item.done","sequence_number":11,"output_index":1,"item":{"id":"fc_X",)"
      R"("type":"function_call","status":"completed","call_id":"call_X","name":"add","arguments":"{\"a\": 1}"}})"
      "\n\n");
}

TEST_F(ResponsesTest, ACallThatWasCutIsIncomplete) {
  spell("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ", FinishReason::length);
  const std::string cut = R"("type":"function_call","status":"incomplete","call_id":"call_X","name":"add",)";
  EXPECT_THAT(steady(post(R"("input":"x",)" + std::string(kAdd)).body), HasSubstr(cut));
  // Text goes on after the call's end, and only that is cut.
  spell("<tool_call>{\"name\": \"add\"}</tool_call>", FinishReason::length);
  EXPECT_THAT(steady(post(R"("input":"x",)" + std::string(kAdd)).body),
              HasSubstr(R"("status":"completed","call_id":"call_X","name":"add","arguments":"{}")"));
}

TEST_F(ResponsesTest, ToolChoiceHoldsTheAnswer) {
  spell("{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", FinishReason::stop);
  for (const char* choice : {R"("required")", R"({"type":"function","name":"add"})"}) {
    const TestResponse r = post(R"("input":"x",)" + std::string(kAdd) + R"(,"tool_choice":)" + choice);
    EXPECT_THAT(r.body, HasSubstr(R"("name":"add","arguments":"{\"a\": 1}"}],"parallel_tool_calls")"));
    EXPECT_THAT(r.body, HasSubstr(R"("tool_choice":)" + std::string(choice)));
    EXPECT_NE(model_.scripted.request(model_.scripted.submitted() - 1).constraint, nullptr);
  }
}

TEST_F(ResponsesTest, AFormHoldsTheAnswerAndIsSaidBack) {
  spell("{}", FinishReason::stop);
  const std::string format = R"({"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true})";
  EXPECT_THAT(post(R"("input":"x","text":{"verbosity":null,"format":)" + format + "}").body,
              HasSubstr(R"("text":{"format":)" + format + "}"));
  EXPECT_NE(model_.scripted.request(0).constraint, nullptr);
}

TEST_F(ResponsesTest, CallsAndTheirOutputsReachTheModelInlineAndStored) {
  model_.scripted.info_.context = 4096;
  spell("A<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":1}}</tool_call>", FinishReason::stop);
  const std::string id = id_of(post(R"("input":"x","store":true,)" + std::string(kAdd)));
  const std::string output = R"({"type":"function_call_output","call_id":"c","output":"7"})";
  post(R"("previous_response_id":")" + id + R"(","input":[)" + output + "]");
  const std::string stored = seen();
  EXPECT_EQ(stored,
            "[user]x\n[assistant]A\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>\n"
            "[user]<tool_response>\n7\n</tool_response>\n[assistant]");
  post(
      R"("input":[{"role":"user","content":"x"},{"role":"assistant","content":"A"},{"id":"fc_1","type":"function_call",)"
      R"("call_id":"c","name":"add","arguments":"{\"a\":1}","status":"completed"},)" +
      output + "]");
  EXPECT_EQ(seen(), stored);
}

TEST_F(ResponsesTest, WhatIsStoredGoesOnForItsKeyAlone) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  start(config);
  say({"hello"}, FinishReason::stop);
  const std::string one = "Authorization: Bearer one\r\n", two = "Authorization: Bearer two\r\n";
  const std::string id = id_of(post(R"("input":"x","instructions":"be","store":true)", one));
  EXPECT_THAT(request("GET", "/v1/responses/" + id, one).body, HasSubstr("\"text\":\"hello\""));
  EXPECT_EQ(request("GET", "/v1/responses/" + id, two).status, 404);
  EXPECT_EQ(post(R"("input":"y","previous_response_id":")" + id + "\"", two).status, 404);
  EXPECT_EQ(request("DELETE", "/v1/responses/" + id, two).status, 404);
  EXPECT_EQ(post(R"("input":"y","previous_response_id":")" + id + "\"", one).status, 200);
  EXPECT_EQ(seen(), "[user]x\n[assistant]hello\n[user]y\n[assistant]");  // instructions are of one request
  EXPECT_THAT(request("DELETE", "/v1/responses/" + id, one).body, HasSubstr("\"deleted\":true"));
  EXPECT_EQ(request("GET", "/v1/responses/" + id, one).status, 404);
  EXPECT_EQ(request("GET", "/v1/responses/" + id_of(post(R"("input":"x")", one)), one).status, 404);
}

TEST_F(ResponsesTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model":"toy")", "input"},
      {R"("input":[])", "input"},
      {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type"},
      {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].type"},
      {R"("input":"x","background":true)", "background"},
      {R"("input":"x","conversation":"c")", "conversation"},
      {R"("input":"x","text":{"format":{"type":"yaml"}})", "text.format.type"},
      {R"("input":"x","text":{"format":{"type":"json_schema","name":"n"}})", "text.format.schema"},
      {R"("input":"x","text":{"format":{"type":"json_schema","schema":{"not":{}}}})", "text.format.schema.not"},
      {R"("input":"x","text":{"format":{"type":"json_schema","json_schema":{}}})", "text.format.json_schema"},
      {R"("input":"x","tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("input":"x","tools":[{"name":"f"}])", "tools[0].type"},
      {R"("input":"x","tools":[{"type":"function","name":"a b"}])", "tools[0].name"},
      {R"("input":"x","tools":[{"type":"function","name":"f","parameters":1}])", "tools[0].parameters"},
      {R"("input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"})",
       "tool_choice.name"},
      {R"("input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools"})",
       "tool_choice.type"},
      {R"("input":"x","tool_choice":"required")", "tool_choice"},
      {R"("input":"x","tools":[{"type":"function","name":"f"}],"text":{"format":{"type":"json_object"}})",
       "text.format"},
      {R"("input":[{"type":"function_call","call_id":"c","name":"f"}])", "input[0].arguments"},
      {R"("input":"x","max_output_tokens":0)", "max_output_tokens"},
      {R"("input":"x","truncation":"auto")", "truncation"},
  };
  for (const auto& [members, field] : cases) {
    const TestResponse r = post(members);
    EXPECT_EQ(r.status, 400) << members;
    EXPECT_THAT(r.body, HasSubstr("\"param\":\"" + std::string(field) + "\"")) << members;
  }
}

TEST(ResponseStore, TheOldestGoFirst) {
  ResponseStore store(2000);
  const auto large = [] { return StoredResponse{std::string(700, 'r'), ""}; };
  store.put("a", 0, large());
  store.put("b", 0, large());
  EXPECT_NE(store.find("a", 0), nullptr);
  store.put("c", 0, large());
  EXPECT_EQ(store.find("a", 0), nullptr);
  EXPECT_NE(store.find("c", 0), nullptr);
  EXPECT_LE(store.bytes(), 2000u);
  store.put("d", 0, StoredResponse{std::string(3000, 'r'), ""});
  EXPECT_EQ(store.find("d", 0), nullptr);
  EXPECT_TRUE(store.erase("b", 0));
  EXPECT_FALSE(store.erase("b", 0));
  EXPECT_TRUE(store.erase("c", 0));
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace sluice
