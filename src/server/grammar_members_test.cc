// Members that hold an answer to a form: what each becomes, and what is refused.
#include "server/grammar_members.h"

#include <gtest/gtest.h>

#include "server/chat_request.h"

namespace sluice {
namespace {

Result<ChatRequest> parsed(const std::string& members) {
  return parse_chat_request(R"({"messages":[{"role":"user","content":"x"}],)" + members + "}", {.vocab = 300});
}
GrammarSource grammar_of(const std::string& members) {
  auto request = parsed(members);
  EXPECT_TRUE(request.ok()) << members << ": " << (request.ok() ? "" : request.error().message);
  if (!request.ok() || !request->options.grammar) return {GrammarSource::Kind::kEbnf, "(none)"};
  return *request->options.grammar;
}
Error refusal(const std::string& members) {
  auto request = parsed(members);
  EXPECT_FALSE(request.ok()) << members;
  return request.ok() ? Error{} : request.error();
}

TEST(GrammarMembersTest, EachBecomesASource) {
  using Kind = GrammarSource::Kind;
  struct Row {
    const char* members;
    Kind kind;
    const char* text;
  } rows[] = {
      {R"("response_format":{"type":"text"})", Kind::kEbnf, "(none)"},
      {R"("response_format":{"type":"json_object"})", Kind::kJsonSchema,
       R"({"type":"object","additionalProperties":true})"},
      {R"("response_format":{"type":"json_object","schema":{"type":"null"}})", Kind::kJsonSchema,
       R"({"type":"null"})"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"null","title":"t"}}})",
       Kind::kJsonSchema, R"({"type":"null"})"},
      {R"("guided_json":{"type":"null"})", Kind::kJsonSchema, R"({"type":"null"})"},
      {R"("guided_json":"{\"type\":\"null\"}")", Kind::kJsonSchema, R"({"type":"null"})"},
      {R"("json_schema":{"type":"null"})", Kind::kJsonSchema, R"({"type":"null"})"},
      {R"("guided_regex":"a+")", Kind::kRegex, "a+"},
      {R"("guided_choice":["yes","n\"o\n"])", Kind::kEbnf, R"(root ::= "yes" | "n\"o\x0a")"},
      {R"("guided_grammar":"root ::= \"a\"")", Kind::kEbnf, R"(root ::= "a")"},
      {R"("grammar":"root ::= \"a\"")", Kind::kEbnf, R"(root ::= "a")"},
      {R"("grammar":"")", Kind::kEbnf, "(none)"},
      {R"("structured_outputs":{"regex":"b"})", Kind::kRegex, "b"},
      {R"("structured_outputs":{"json":null,"choice":["a"]})", Kind::kEbnf, R"(root ::= "a")"},
      {R"("structured_outputs":{"json_object":true})", Kind::kJsonSchema,
       R"({"type":"object","additionalProperties":true})"},
      {R"("guided_json":null)", Kind::kEbnf, "(none)"},
  };
  for (const Row& row : rows) {
    const GrammarSource source = grammar_of(row.members);
    EXPECT_EQ(source.text, row.text) << row.members;
    EXPECT_EQ(int(source.kind), int(row.kind)) << row.members;
  }
}

TEST(GrammarMembersTest, OneFormForAnAnswer) {
  const Error error = refusal(R"("guided_regex":"a","response_format":{"type":"json_object"})");
  EXPECT_EQ(error.field, "response_format");
  EXPECT_NE(error.message.find("guided_regex"), std::string::npos);
  EXPECT_EQ(refusal(R"("structured_outputs":{"regex":"a","choice":["b"]})").field, "structured_outputs.choice");
  auto request = parsed(R"("guided_regex":"a","ignore_eos":true)");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(check_grammar_members(request->options).error().field, "ignore_eos");
}

TEST(GrammarMembersTest, MistakesNameTheirMember) {
  EXPECT_EQ(refusal(R"("response_format":"json")").field, "response_format");
  EXPECT_EQ(refusal(R"("response_format":{"type":"xml"})").field, "response_format.type");
  EXPECT_EQ(refusal(R"("response_format":{"type":"json_schema"})").field, "response_format.json_schema");
  EXPECT_EQ(refusal(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})").field,
            "response_format.json_schema.schema");
  EXPECT_EQ(
      refusal(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"x"}}})")
          .field,
      "response_format.json_schema.schema.type");
  EXPECT_EQ(refusal(R"("response_format":{"type":"json_object","extra":1})").field, "response_format.extra");
  EXPECT_EQ(refusal(R"("guided_regex":"")").field, "guided_regex");
  EXPECT_EQ(refusal(R"("guided_regex":3)").field, "guided_regex");
  EXPECT_EQ(refusal(R"("guided_choice":[])").field, "guided_choice");
  EXPECT_EQ(refusal(R"("guided_choice":["a",3])").field, "guided_choice");
  EXPECT_EQ(refusal(R"("guided_json":"{")").field, "guided_json");
  EXPECT_EQ(refusal(R"("structured_outputs":{"lark":"x"})").field, "structured_outputs.lark");
}

}  // namespace
}  // namespace sluice
