// Tools of a chat request: what is read and refused, what a prompt shows, and what comes back.
#include "server/tools.h"

#include <gtest/gtest.h>

#include "server/chat_request.h"
#include "server/choice.h"
#include "server/testing/toy_model.h"

namespace sluice {
namespace {

constexpr const char* kTools = R"([{"type":"function","function":{"name":"add","parameters":{"type":"object",
  "properties":{"a":{"type":"integer"}},"required":["a"]}}},{"type":"function","function":{"name":"stop"}}])";

Result<ChatRequest> parsed(const std::string& members,
                           const std::string& messages = R"([{"role":"user","content":"x"}])") {
  return parse_chat_request(R"({"messages":)" + messages + "," + members + "}", {.vocab = 300});
}
ChatRequest request_of(const std::string& members) {
  auto request = parsed(members);
  EXPECT_TRUE(request.ok()) << members << ": "
                            << (request.ok() ? "" : request.error().field + request.error().message);
  return request.ok() ? std::move(*request) : ChatRequest();
}
std::string refused_at(const std::string& members) {
  auto request = parsed(members);
  EXPECT_FALSE(request.ok()) << members;
  return request.ok() ? "" : request.error().field;
}
std::string with(const std::string& more) {
  return "\"tools\":" + std::string(kTools) + (more.empty() ? "" : "," + more);
}

TEST(ToolsTest, AreRead) {
  const ToolOptions tools = request_of(with("")).tools;
  ASSERT_EQ(tools.tools.size(), 2u);
  EXPECT_EQ(tools.tools[0].name, "add");
  EXPECT_TRUE(tools.active());
  EXPECT_FALSE(tools.forced());
  EXPECT_FALSE(request_of(with(R"("tool_choice":"none")")).tools.active());
  EXPECT_TRUE(request_of(with(R"("tool_choice":"required")")).tools.forced());
  EXPECT_EQ(request_of(with(R"("tool_choice":{"type":"function","function":{"name":"stop"}})")).tools.named,
            "stop");
  EXPECT_FALSE(request_of(with(R"("parallel_tool_calls":false)")).tools.parallel);
  EXPECT_FALSE(request_of(R"("tools":[],"tool_choice":"auto")").tools.active());
}

TEST(ToolsTest, MistakesNameTheirPath) {
  EXPECT_EQ(refused_at(R"("tools":{})"), "tools");
  EXPECT_EQ(refused_at(R"("tools":[{"type":"retrieval"}])"), "tools[0].type");
  EXPECT_EQ(refused_at(R"("tools":[{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(refused_at(R"("tools":[{"type":"function","function":{"name":"a b"}}])"), "tools[0].function.name");
  EXPECT_EQ(
      refused_at(
          R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])"),
      "tools[1].function.name");
  EXPECT_EQ(refused_at(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(
      refused_at(R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"string"}}}])"),
      "tools[0].function.parameters.type");
  EXPECT_EQ(refused_at(with(R"("tool_choice":"maybe")")), "tool_choice");
  EXPECT_EQ(refused_at(with(R"("tool_choice":{"type":"function","function":{"name":"other"}})")),
            "tool_choice.function.name");
  EXPECT_EQ(refused_at(with(R"("guided_regex":"a")")), "guided_regex");
  EXPECT_EQ(refused_at(with(R"("response_format":{"type":"json_object"})")), "response_format");
  const std::string open = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"not":{}}}}])";
  EXPECT_TRUE(parsed(open).ok()) << "the model may call it as it likes";
  EXPECT_EQ(refused_at(open + R"(,"tool_choice":"required")"), "tools[0].function.parameters.not");
  EXPECT_FALSE(parsed(with(""), R"([{"role":"assistant","content":"","tool_calls":[{"id":"1"}]}])").ok());
}

// The structural tag of forced calls compiles for each format, and holds calls of the tools alone.
TEST(ToolsTest, ForcedCallsAreHeldToTheTools) {
  ToyModel model;
  const auto accepts = [&](const std::string& members, ToolFormat format, std::string_view text) {
    auto grammar = model.grammars().compile(forced_calls(request_of(with(members)).tools, format));
    EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
    if (!grammar.ok()) return false;
    GrammarMatcher matcher(*grammar, {});
    std::vector<uint32_t> mask(size_t(model.tokenizer().size() + 31) / 32);
    for (const char c : text) {
      const int32_t id = model.byte(c);
      if (matcher.fill(mask) != GrammarMatcher::State::kOpen || !(mask[size_t(id) / 32] >> (id % 32) & 1))
        return false;
      matcher.accept(id);
    }
    return matcher.fill(mask) != GrammarMatcher::State::kFailed && (mask[0] >> 2 & 1);
  };
  const std::string required = R"("tool_choice":"required")";
  EXPECT_TRUE(
      accepts(required, ToolFormat::hermes, "{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>"));
  EXPECT_TRUE(
      accepts(required, ToolFormat::hermes,
              "{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"stop\", "
              "\"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(required, ToolFormat::hermes, "{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(required, ToolFormat::hermes, "{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(required, ToolFormat::hermes, "hello"));
  EXPECT_TRUE(accepts(required, ToolFormat::llama3, "{\"name\": \"add\", \"parameters\": {\"a\": 12}}"));
  EXPECT_TRUE(accepts(required, ToolFormat::mistral, "[{\"name\": \"add\", \"arguments\": {\"a\": 12}}]"));
  const std::string named = R"("tool_choice":{"type":"function","function":{"name":"stop"}})";
  EXPECT_TRUE(accepts(named, ToolFormat::llama3, "{\"name\": \"stop\", \"parameters\": {}}"));
  EXPECT_FALSE(accepts(named, ToolFormat::llama3, "{\"name\": \"add\", \"parameters\": {\"a\": 12}}"));
}

TEST(ToolsTest, AsTextForTemplatesThatDropThem) {
  const std::string messages = R"([{"role":"system","content":"Be kind."},{"role":"user","content":"x"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"add","arguments":"{\"a\": 1}"}}]},
    {"role":"tool","tool_call_id":"1","content":"2"},{"role":"tool","tool_call_id":"2","content":[{"type":"text","text":"3"}]},
    {"role":"user","content":"y"}])";
  auto document = JsonDocument::parse(tools_as_text(messages, kTools));
  ASSERT_TRUE(document.ok());
  const auto content = [&](size_t i) { return std::string(*document->root().at(i).find("content")->string()); };
  ASSERT_EQ(document->root().size(), 5u);
  EXPECT_EQ(content(0).find("Be kind.\n\n"), 0u);
  EXPECT_NE(content(0).find(R"("name":"add")"), std::string::npos);
  EXPECT_EQ(content(2), "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\": 1}}\n</tool_call>");
  EXPECT_EQ(content(3), "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>");
  EXPECT_EQ(content(4), "y");
  EXPECT_NE(
      tools_as_text(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}])", "")
          .find(R"(\"arguments\":{})"),
      std::string::npos);
}

// Events to calls, whichever way the text is cut by tokens.
TEST(ToolsTest, AChoiceTellsCallsFromText) {
  ToyModel model;
  GenerationOptions options;
  options.tool_format = ToolFormat::hermes;
  const std::string said = "Well. <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"ABC\"}}</tool_call>";
  for (const bool one : {false, true}) {
    options.one_call = one;
    Choice choice(0, model.tokenizer(), options, false, 0);
    bool ended = false;
    for (const char c : said) {
      TokenEvent event;
      event.id = model.byte(c);
      if (!ended) ended = choice.push(event);
    }
    EXPECT_EQ(ended, one) << "the first call ends the answer, before its closing mark";
    if (!ended) choice.push(model.end());
    const ChoiceDelta delta = choice.take();
    EXPECT_EQ(delta.text, "Well.");
    ASSERT_FALSE(delta.calls.empty());
    EXPECT_EQ(delta.calls[0].name, "f");
    EXPECT_TRUE(choice.called());
    EXPECT_EQ(choice.finish(), FinishReason::stop);
  }
}

}  // namespace
}  // namespace sluice
