#include "server/json_schema.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

Result<std::string> checked(std::string_view text) {
  auto document = JsonDocument::parse(text);
  if (!document.ok()) return document.error();
  return checked_json_schema(document->root(), "s");
}
std::string canonical(std::string_view text) {
  auto result = checked(text);
  EXPECT_TRUE(result.ok()) << text << ": "
                           << (result.ok() ? "" : result.error().field + " " + result.error().message);
  return result.ok() ? *result : "";
}
// The path at fault.
std::string refused_at(std::string_view text) {
  auto result = checked(text);
  EXPECT_FALSE(result.ok()) << text;
  return result.ok() ? "" : result.error().field;
}

TEST(JsonSchemaTest, AnnotationsGoAndOpenListsAreSpelledOut) {
  EXPECT_EQ(canonical(R"({"title":"T","$schema":"x","type":"string","description":"d","default":1})"),
            R"({"type":"string"})");
  EXPECT_EQ(canonical(R"({"type":"array"})"), R"({"type":"array","items":true})");
  EXPECT_EQ(canonical(R"({"type":"object"})"), R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(canonical(R"({"properties":{"a":{}}})"), R"({"type":"object","properties":{"a":{}}})");
  EXPECT_EQ(canonical(R"({"minLength":3})"), R"({"type":"string","minLength":3})");
  EXPECT_EQ(canonical("true"), "true");
}

TEST(JsonSchemaTest, WhatCannotBeEnforcedIsRefusedByItsPath) {
  EXPECT_EQ(refused_at(R"({"type":"array","uniqueItems":true})"), "s.uniqueItems");
  EXPECT_EQ(refused_at(R"({"type":"object","properties":{"a":{"not":{}}}})"), "s.properties.a.not");
  EXPECT_EQ(refused_at(R"({"anyOf":[{"type":"string"},{"if":{}}]})"), "s.anyOf[1].if");
  EXPECT_EQ(refused_at(R"({"allOf":[{},{}]})"), "s.allOf");
  EXPECT_EQ(refused_at(R"({"type":"string","format":"isbn"})"), "s.format");
  EXPECT_EQ(refused_at(R"({"type":"string","pattern":"a","maxLength":3})"), "s.maxLength");
  EXPECT_EQ(refused_at(R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{}}})"), "s.minimum");
  EXPECT_EQ(refused_at(R"({"enum":[1],"anyOf":[{}]})"), "s.anyOf");
  EXPECT_EQ(refused_at(R"({"type":"object","patternProperties":{}})"), "s.patternProperties");
  EXPECT_EQ(refused_at(R"({"made_up":1})"), "s.made_up");
}

TEST(JsonSchemaTest, MistakesAreRefusedByTheirPath) {
  EXPECT_EQ(refused_at("3"), "s");
  EXPECT_EQ(refused_at("false"), "s");
  EXPECT_EQ(refused_at(R"({"type":"text"})"), "s.type");
  EXPECT_EQ(refused_at(R"({"type":[]})"), "s.type");
  EXPECT_EQ(refused_at(R"({"minLength":1,"minItems":1})"), "s.type");
  EXPECT_EQ(refused_at(R"({"type":"string","minLength":5,"maxLength":2})"), "s.maxLength");
  EXPECT_EQ(refused_at(R"({"type":"string","minLength":-1})"), "s.minLength");
  EXPECT_EQ(refused_at(R"({"type":"string","type":"null"})"), "s.type");
  EXPECT_EQ(refused_at(R"({"type":"object","properties":{"a":{},"a":{}}})"), "s.properties.a");
  EXPECT_EQ(refused_at(R"({"type":"object","properties":{},"required":["b"]})"), "s.required");
  EXPECT_EQ(refused_at(R"({"type":"integer","enum":[1,"x"]})"), "s.enum");
  EXPECT_EQ(refused_at(R"({"enum":[]})"), "s.enum");
}

TEST(JsonSchemaTest, ReferencesMustExistAndEnd) {
  EXPECT_NE(
      canonical(
          R"({"$defs":{"t":{"type":"object","properties":{"n":{"$ref":"#/$defs/t"}}}},"$ref":"#/$defs/t"})"),
      "");
  EXPECT_NE(canonical(R"({"type":"object","properties":{"again":{"$ref":"#"}}})"), "");
  EXPECT_NE(
      canonical(
          R"({"type":"object","properties":{"a":{"anyOf":[{"type":"integer"},{"enum":["x"]}]},"b":{"$ref":"#/properties/a/anyOf/1"}}})"),
      "");
  EXPECT_NE(canonical(R"({"$ref":"#/definitions/a~1b%25","definitions":{"a/b%":{"const":7}}})"), "");
  for (const char* reference :
       {"#/$defs/none", "#/properties", "#/$defs", "#/anyOf/0", "#/default/x", "#a", "other.json"})
    EXPECT_EQ(refused_at(fmt::format(R"({{"$ref":"{}","default":{{"x":{{}}}}}})", reference)), "s.$ref")
        << reference;
  EXPECT_EQ(refused_at(R"({"$ref":"http://example.com/schema"})"), "s.$ref");
  EXPECT_EQ(refused_at(R"({"$ref":"#"})"), "s");
  EXPECT_EQ(refused_at(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})"),
            "s.$defs.a");
}

TEST(JsonSchemaTest, SizesAreBounded) {
  std::string wide = R"({"type":"object","properties":{)", chain = R"({"$ref":"#/$defs/d0","$defs":{)",
              values = R"({"enum":[0)";
  for (int i = 0; i < 5000; ++i) {
    wide += (i ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
    values += "," + std::to_string(i);
  }
  for (int i = 0; i < 400; ++i)
    chain +=
        fmt::format(R"({}"d{}":{{"type":"array","items":{{"$ref":"#/$defs/d{}"}}}})", i ? "," : "", i, i + 1);
  EXPECT_FALSE(checked(wide + "}}").ok());
  EXPECT_FALSE(checked(values + "]}").ok());
  EXPECT_EQ(refused_at(chain + R"(,"d400":{}}})"), "s");
}

}  // namespace
}  // namespace sluice
