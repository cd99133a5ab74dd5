#include "text/tool_calls.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

struct Call {
  std::string name, arguments;
  bool complete = false;
  bool operator==(const Call&) const = default;
};
struct Said {
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Said&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Said& said) {
  out << '"' << said.content << '"';
  for (const Call& c : said.calls) out << " " << c.name << "(" << c.arguments << ")" << (c.complete ? "" : "…");
  return out;
}

Said parsed(ToolFormat format, const std::vector<std::string_view>& parts, bool inside = false) {
  ToolCallParser parser(format, inside);
  Said said;
  std::vector<ToolCallPiece> pieces;
  for (const std::string_view part : parts) parser.push(part, said.content, pieces);
  parser.finish(said.content, pieces);
  for (const ToolCallPiece& piece : pieces) {
    if (!piece.name.empty()) {
      EXPECT_EQ(size_t(piece.index), said.calls.size());
      EXPECT_EQ(piece.arguments, "") << "the name comes first";
      said.calls.push_back({piece.name, "", false});
    }
    EXPECT_EQ(size_t(piece.index) + 1, said.calls.size());
    said.calls.back().arguments += piece.arguments;
    said.calls.back().complete |= piece.complete;
  }
  EXPECT_EQ(size_t(parser.calls()), said.calls.size());
  return said;
}

struct Row {
  ToolFormat format;
  std::string_view text;
  Said expected;
};
const std::vector<Row>& rows() {
  using enum ToolFormat;
  static const std::vector<Row> all{
      {hermes, "Hello <b>", {"Hello <b>", {}}},
      {hermes,
       R"(<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}
</tool_call>)",
       {"", {{"get_weather", R"({"city": "Paris", "days": [1, 2]})", true}}}},
      {hermes,
       R"(Let me see.
<tool_call>{"name":"a","arguments":{}}</tool_call>
<tool_call>{"name":"b","arguments":{"x":"</tool_call>}\""}}</tool_call>
)",
       {"Let me see.", {{"a", "{}", true}, {"b", R"({"x":"</tool_call>}\""})", true}}}},
      {hermes,
       R"(<tool_call>{"arguments":{"a":1} , "name":"late"}</tool_call>)",
       {"", {{"late", R"({"a":1})", true}}}},
      {hermes, R"(<tool_call>{"name":"f"}</tool_call>)", {"", {{"f", "{}", true}}}},
      {hermes,
       R"(<tool_call>{"name":"f","arguments":"{\"a\": \"\u00e9\\n\"}"}</tool_call>)",
       {"", {{"f", R"({"a": "é\n"})", true}}}},
      {hermes, R"(<tool_call>{"name":"f","arguments":{"a":1})", {"", {{"f", R"({"a":1})", false}}}},
      {hermes, R"(<tool_call>{"name":"f")", {R"(<tool_call>{"name":"f")", {}}},
      {hermes, "<tool_call>none</tool_call>", {"<tool_call>none</tool_call>", {}}},
      {hermes, R"(<tool_call>{"x":1}</tool_call>)", {R"(<tool_call>{"x":1}</tool_call>)", {}}},
      {hermes, "a <tool_cal", {"a <tool_cal", {}}},
      {hermes,
       R"(<tool_call>{"name":"a","arguments":{}}<tool_call>{"name":"b","arguments":{}}</tool_call>x)",
       {"x", {{"a", "{}", true}, {"b", "{}", true}}}},
      {hermes, "a < b \n", {"a < b \n", {}}},
      {llama3, R"({"name": "f", "parameters": {"q": "x"}})", {"", {{"f", R"({"q": "x"})", true}}}},
      {llama3,
       R"(<|python_tag|>{"name":"f","parameters":{}}; {"name":"g","parameters":{"a":null}})",
       {"", {{"f", "{}", true}, {"g", R"({"a":null})", true}}}},
      {llama3, R"({"answer": 3})", {R"({"answer": 3})", {}}},
      {llama3, R"(It is {"name":"f","parameters":{}})", {R"(It is {"name":"f","parameters":{}})", {}}},
      {mistral,
       R"([TOOL_CALLS] [{"name":"f","arguments":{"a":"]"}}, {"name":"g","arguments":{}}])",
       {"", {{"f", R"({"a":"]"})", true}, {"g", "{}", true}}}},
      {mistral,
       R"([TOOL_CALLS]f[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]g{"c":1})",
       {"", {{"f", R"({"a": {"b": "}"}})", true}, {"g", R"({"c":1})", true}}}},
      {mistral, "[1, 2] [TOOL", {"[1, 2] [TOOL", {}}},
      {none, "<tool_call>x", {"<tool_call>x", {}}},
  };
  return all;
}

TEST(ToolCallsTest, CallsAndTextAreToldApart) {
  for (const Row& row : rows()) EXPECT_EQ(parsed(row.format, {row.text}), row.expected) << row.text;
}

TEST(ToolCallsTest, TheSameHoweverTheTextIsCut) {
  for (const Row& row : rows()) {
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < row.text.size(); ++i) {
      bytes.push_back(row.text.substr(i, 1));
      EXPECT_EQ(parsed(row.format, {row.text.substr(0, i), row.text.substr(i)}), row.expected)
          << row.text << " at " << i;
    }
    EXPECT_EQ(parsed(row.format, bytes), row.expected) << row.text << " byte by byte";
  }
}

TEST(ToolCallsTest, ArgumentsStreamWhileTheyCome) {
  ToolCallParser parser(ToolFormat::hermes);
  std::string content;
  std::vector<ToolCallPiece> pieces;
  parser.push(R"(<tool_call>{"name": "f", "arguments": {"te)", content, pieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].name, "f");
  EXPECT_EQ(pieces[1].arguments, R"({"te)");
}

TEST(ToolCallsTest, InsideACallFromTheStart) {
  EXPECT_EQ(parsed(ToolFormat::mistral, {R"([{"name":"f","arguments":{}}])"}, true),
            (Said{"", {{"f", "{}", true}}}));
}

TEST(ToolCallsTest, FormatsOfTemplates) {
  EXPECT_EQ(tool_format_of("…<tool_call>\n{{ … }}"), ToolFormat::hermes);
  EXPECT_EQ(tool_format_of("[AVAILABLE_TOOLS] [TOOL_CALLS]"), ToolFormat::mistral);
  EXPECT_EQ(tool_format_of("<|python_tag|>"), ToolFormat::llama3);
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::hermes);
}

}  // namespace
}  // namespace sluice
