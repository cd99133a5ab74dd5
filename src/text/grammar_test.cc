// What grammars allow, by walking texts through masks as sampled tokens would; and what hostile ones cost.
#include "text/grammar.h"

#include <gtest/gtest.h>

#include "base/allocation_budget.h"
#include "text/test_support.h"

namespace sluice {
namespace {

using Kind = GrammarSource::Kind;

const Tokenizer& smollm() { return testing_support::smollm_tokenizer(); }

// What is right does not depend on how fast a sanitizer's build or a busy machine is: no bound of time here.
GrammarLimits unhurried() {
  GrammarLimits limits;
  limits.compile_cpu_ns = limits.mask_cpu_ns = 3'600'000'000'000;
  return limits;
}

GrammarCompiler& compiler() {
  static GrammarCompiler one(smollm(), smollm().size(), smollm().end_of_generation_ids(), unhurried());
  return one;
}

std::shared_ptr<const Grammar> compiled(Kind kind, const std::string& text) {
  auto made = compiler().compile({kind, text});
  EXPECT_TRUE(made.ok()) << text << ": " << (made.ok() ? "" : made.error().message);
  return made.ok() ? *made : nullptr;
}
Error refused(Kind kind, const std::string& text) {
  auto made = compiler().compile({kind, text});
  EXPECT_FALSE(made.ok()) << text;
  return made.ok() ? Error{} : made.error();
}

bool allows(const std::vector<uint32_t>& mask, int32_t id) { return mask[size_t(id) / 32] >> (id % 32) & 1; }

// Whether the text, as the tokenizer cuts it, may be sampled and then end.
bool accepts(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  if (!grammar) return false;
  GrammarMatcher matcher(grammar, unhurried());
  std::vector<uint32_t> mask(size_t(smollm().size() + 31) / 32);
  for (const int32_t id : smollm().encode(text, false, false)) {
    if (matcher.fill(mask) != GrammarMatcher::State::kOpen || !allows(mask, id)) return false;
    EXPECT_TRUE(matcher.accept(id)) << text;
  }
  const auto state = matcher.fill(mask);
  return state == GrammarMatcher::State::kOver ||
         (state == GrammarMatcher::State::kOpen && allows(mask, smollm().eos_id()));
}

struct SchemaRow {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

TEST(GrammarTest, JsonSchemas) {
  const SchemaRow rows[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": -7\n}"},
       {R"({"b":"x"})", R"({"a":1.5})", R"({"a":1,"c":2})", R"({"a":1)", R"({"a":1}})", "[]", ""}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
       {"[true]", "[true, false]"},
       {"[]", "[true,true,true]", "[1]"}},
      {R"({"enum":["red","green",3,null]})", {R"("red")", "3", "null"}, {R"("blue")", "4"}},
      {R"({"type":"integer","minimum":0,"maximum":150})", {"0", "99", "150"}, {"-1", "151", "1.0"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("äöü")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})", {R"("AB-12")"}, {R"("ab-12")", R"("AB-")"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-29")"}, {R"("2024-13-01")"}},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", {R"("x")", "null"}, {"1"}},
      {R"({"type":["number","null"]})", {"1.5e3", "null"}, {"true"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
           "required":["next"]}},"$ref":"#/$defs/n"})",
       {R"({"next":null})", R"({"next":{"next":null}})"},
       {R"({"next":{}})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"type":"object","additionalProperties":true})", {R"({"x":[1,{"y":null}]})"}, {"[1]", R"({"x":})"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {R"([1,"x"])"},
       {R"(["x",1])", R"([1,"x",2])"}},
  };
  for (const SchemaRow& row : rows) {
    const auto grammar = compiled(Kind::kJsonSchema, row.schema);
    if (!grammar) continue;
    for (const char* text : row.valid) EXPECT_TRUE(accepts(grammar, text)) << row.schema << "\n" << text;
    for (const char* text : row.invalid) EXPECT_FALSE(accepts(grammar, text)) << row.schema << "\n" << text;
  }
}

TEST(GrammarTest, WhatXgrammarWouldIgnoreIsRefused) {
  for (const char* schema :
       {R"({"type":"number","multipleOf":0.5})", R"({"type":"string","format":"date","minLength":3})",
        R"({"allOf":[{"type":"string"},{"minLength":1}]})"}) {
    EXPECT_EQ(refused(Kind::kJsonSchema, schema).code, ErrorCode::kInvalidArgument) << schema;
  }
  EXPECT_NE(refused(Kind::kJsonSchema, R"({"type":"string","pattern":"("})").message, "");
}

TEST(GrammarTest, Regexes) {
  const auto grammar = compiled(Kind::kRegex, "(yes|no)[.!]?");
  for (const char* text : {"yes", "no.", "yes!"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"maybe", "yes?", "yes..", ""}) EXPECT_FALSE(accepts(grammar, text)) << text;
  const auto phone = compiled(Kind::kRegex, R"(\(\d{3}\) \d{3}-\d{4})");
  EXPECT_TRUE(accepts(phone, "(555) 123-4567"));
  EXPECT_FALSE(accepts(phone, "(55) 123-4567"));
}

// llama.cpp's grammars/README.md describes the syntax.
TEST(GrammarTest, GbnfOfLlamaCpp) {
  const auto arithmetic = compiled(Kind::kEbnf, R"g(# sums
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)g");
  EXPECT_TRUE(accepts(arithmetic, "a +(b2 *3) = 7\n"));
  EXPECT_FALSE(accepts(arithmetic, "a += 7\n"));
  const auto counted = compiled(Kind::kEbnf, R"g(root ::= item{2,3} "." [^\x00-\x1f"]?
item ::= "- " [a-z]+ "\n"?)g");
  EXPECT_TRUE(accepts(counted, "- a\n- b."));
  EXPECT_FALSE(accepts(counted, "- a."));
  const auto any = compiled(Kind::kEbnf, "root ::= \"<\" . \"é\" \">\"");
  EXPECT_TRUE(accepts(any, "<xé>"));
  EXPECT_FALSE(accepts(any, "<é>"));
}

TEST(GrammarTest, MistakesAreTold) {
  EXPECT_NE(refused(Kind::kRegex, "(a").message.find("cannot be used"), std::string::npos);
  EXPECT_NE(refused(Kind::kEbnf, "root ::= undefined").message.find("undefined"), std::string::npos);
  EXPECT_EQ(refused(Kind::kEbnf, "start ::= \"a\"").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(Kind::kJsonSchema, "{").code, ErrorCode::kInvalidArgument);
}

// Each of these would take seconds to for ever, or all memory, without a bound.
TEST(GrammarTest, HostileGrammarsEndWithinTheirBounds) {
  GrammarLimits limits;
  limits.compile_cpu_ns = 1'000'000'000;
  limits.compile_bytes = 128 << 20;
  GrammarCompiler bounded(smollm(), smollm().size(), smollm().end_of_generation_ids(), limits);
  std::string many_rules = "root ::= r0\n";
  for (int i = 0; i < 20000; ++i)
    many_rules += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  std::string nested_object = "true";
  for (int i = 0; i < 60; ++i)
    nested_object = R"({"type":"object","properties":{"a":)" + nested_object + R"(},"required":["a"]})";
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 4000; ++i)
    wide += (i ? "," : "") + std::string("\"property_") + std::to_string(i) +
            R"(":{"type":"string","maxLength":60000})";
  const GrammarSource hostile[] = {
      {Kind::kRegex, "((((a{1,1000}){1,1000}){1,1000}){1,1000})"},
      {Kind::kRegex, "(a|aa|aaa|b?)*(x|xx)*" + std::string(2000, 'q') + "(.*a){30}"},
      {Kind::kRegex, "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)[^a]{400}"},
      {Kind::kRegex, "[ab]*a[ab]{25}"},
      {Kind::kRegex, std::string(8000, '(') + "a" + std::string(8000, ')')},
      {Kind::kRegex, std::string(15000, '?')},
      {Kind::kEbnf, "root ::= " + std::string(8000, '(') + "\"a\"" + std::string(8000, ')')},
      {Kind::kEbnf, many_rules},
      {Kind::kEbnf, "root ::= root root root | \"a\" | \"\""},
      {Kind::kEbnf, "root ::= root"},
      {Kind::kEbnf, "root ::= ((\"a\"{1,99999}){1,99999}){1,99999}"},
      {Kind::kJsonSchema, nested_object},
      {Kind::kJsonSchema, wide + "}}"},
      {Kind::kJsonSchema, R"({"type":"array","minItems":65536,"items":{"type":"array","minItems":65536}})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(([a-z]{1,9999}){1,9999}){1,9999}"})"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})"},
  };
  for (const GrammarSource& source : hostile) {
    const auto made = bounded.compile(source);
    std::printf("  %-60.60s %s\n", source.text.c_str(), made.ok() ? "compiled" : made.error().message.c_str());
    if (!made.ok()) continue;
    // What compiles can be followed, within its own bounds.
    GrammarMatcher matcher(*made, limits);
    std::vector<uint32_t> mask(size_t(smollm().size() + 31) / 32);
    for (int i = 0; i < 40 && matcher.fill(mask) == GrammarMatcher::State::kOpen; ++i) {
      int32_t id = 0;
      while (id < smollm().size() && !allows(mask, id)) ++id;
      ASSERT_LT(id, smollm().size());
      if (!matcher.accept(id)) break;
    }
  }
}

// The bound is an exception out of operator new, anywhere: whatever is being built must come apart again.
TEST(GrammarTest, ACompileCanBeStoppedAtAnyAllocation) {
  const GrammarSource sources[] = {
      {Kind::kJsonSchema, R"({"type":"object","properties":{"a":{"enum":["x","y"]},"b":{"type":"array","items":
        {"type":"integer","minimum":3,"maximum":1234}}},"required":["a"],"additionalProperties":{"type":"string","pattern":"a+"}})"},
      {Kind::kRegex, "(ab?|c{2,5})*[^x]"},
      {Kind::kEbnf, "root ::= a (\",\" a)* \"é\"{0,3}\na ::= [a-z]+ | \"(\" root \")\""},
  };
  for (const GrammarSource& source : sources) {
    // A step that grows keeps this to some hundreds of compiles.
    for (int64_t at = 1, failures = 0;; at += 1 + at / 40) {
      GrammarLimits limits = unhurried();
      limits.fail_at_allocation = at;
      GrammarCompiler failing(smollm(), 512, {}, limits);
      if (failing.compile(source).ok()) {
        EXPECT_GT(failures, 50);
        break;
      }
      ++failures;
    }
  }
}

TEST(GrammarTest, CompiledOnceAndKeptWithinTheBound) {
  GrammarLimits limits = unhurried();
  limits.cached_grammars = 2;
  GrammarCompiler small(smollm(), smollm().size(), smollm().end_of_generation_ids(), limits);
  const auto first = small.compile({Kind::kRegex, "one"});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*small.compile({Kind::kRegex, "one"}), *first);
  EXPECT_EQ(small.find({Kind::kRegex, "one"}), *first);
  EXPECT_EQ(small.find({Kind::kEbnf, "one"}), nullptr);
  ASSERT_TRUE(small.compile({Kind::kRegex, "two"}).ok());
  ASSERT_TRUE(small.compile({Kind::kRegex, "three"}).ok());
  EXPECT_EQ(small.find({Kind::kRegex, "one"}), nullptr);
  EXPECT_NE(small.find({Kind::kRegex, "three"}), nullptr);
}

TEST(GrammarTest, AnEndOnlyWhereTheGrammarMayEnd) {
  GrammarMatcher matcher(compiled(Kind::kRegex, "ab|abc"), unhurried());
  std::vector<uint32_t> mask(size_t(smollm().size() + 31) / 32);
  ASSERT_EQ(matcher.fill(mask), GrammarMatcher::State::kOpen);
  EXPECT_FALSE(allows(mask, smollm().eos_id()));
  ASSERT_TRUE(matcher.accept(smollm().find("ab")));
  ASSERT_EQ(matcher.fill(mask), GrammarMatcher::State::kOpen);
  EXPECT_TRUE(allows(mask, smollm().eos_id()));
  EXPECT_TRUE(allows(mask, smollm().find("c")));
  EXPECT_FALSE(allows(mask, smollm().find("d")));
  ASSERT_TRUE(matcher.accept(smollm().eos_id()));
  EXPECT_EQ(matcher.fill(mask), GrammarMatcher::State::kOver);
}

TEST(GrammarTest, AnIdThatIsNotAllowedEndsTheMatch) {
  GrammarMatcher matcher(compiled(Kind::kRegex, "ab"), unhurried());
  std::vector<uint32_t> mask(size_t(smollm().size() + 31) / 32);
  EXPECT_FALSE(matcher.accept(smollm().find("zz")));
  EXPECT_EQ(matcher.fill(mask), GrammarMatcher::State::kFailed);
}

}  // namespace
}  // namespace sluice
