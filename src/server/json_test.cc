#include "server/json.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "server/http_error.h"
#include "server/json_writer.h"
#include "server/limits.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string message_of(std::string_view text) {
  auto document = JsonDocument::parse(text);
  return document.ok() ? "" : document.error().message;
}

TEST(Json, ReadsValuesByTheirTypes) {
  auto d = JsonDocument::parse(
      R"({"i":-5,"u":18446744073709551615,"f":1.5,"w":3.0,"s":"a\u00e9","b":true,"n":null,"a":[1,2]})");
  ASSERT_TRUE(d.ok());
  const JsonView o = d->root();
  EXPECT_EQ(o.find("i")->integer(), -5);
  EXPECT_FALSE(o.find("u")->integer());
  EXPECT_FALSE(o.find("f")->integer());
  EXPECT_EQ(o.find("w")->integer(), 3);
  EXPECT_EQ(o.find("f")->number(), 1.5);
  EXPECT_EQ(o.find("s")->string(), "a\xC3\xA9");
  EXPECT_EQ(o.find("b")->boolean(), true);
  EXPECT_TRUE(o.find("n")->is_null());
  EXPECT_EQ(o.find("a")->size(), 2u);
  EXPECT_EQ(o.find("a")->at(1).integer(), 2);
  EXPECT_FALSE(o.find("none"));
  EXPECT_EQ(o.find("a")->text(), "[1,2]");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* bad : {"{", "{]", "nul", "[1,]", "{\"a\":1,}", "\"\\ud83d\"", "\"\x01\"", "[1e999]", "[01]",
                          "{}{}", "NaN", "[Infinity]"}) {
    EXPECT_NE(message_of(bad), "") << bad;
  }
  EXPECT_THAT(message_of(""), HasSubstr("empty"));
}

TEST(Json, RefusesInvalidUtf8WithoutRepeatingIt) {
  for (const char* bad : {"\xC4\xE3\xBA\xC3", "\xFF", "\xC0\x80", "\xED\xA0\xBD"}) {
    const std::string message = message_of("{\"content\":\"" + std::string(bad) + "\"}");
    EXPECT_THAT(message, HasSubstr("UTF-8"));
    EXPECT_TRUE(is_valid_utf8(message));
  }
}

TEST(Json, RefusesDeepNestingOfEveryKind) {
  const int deep = 100000;
  EXPECT_THAT(message_of(std::string(deep, '[') + std::string(deep, ']')), HasSubstr("nested too deep"));
  std::string objects;
  for (int i = 0; i < 3000; ++i) objects += R"({"a":)";
  EXPECT_THAT(message_of(objects + "1" + std::string(3000, '}')), HasSubstr("nested too deep"));
  EXPECT_EQ(message_of(std::string(limits::kJsonDepth, '[') + std::string(limits::kJsonDepth, ']')), "");
}

// A text, and where it is told to be wrong.
TEST(Json, SaysWhereItIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"a\":1,}", "line 1, column 8"},       {"{\n \"a\": tru}", "line 2, column 7"},
      {"{\"a\":\"x", "line 1, column 8"},       {"{\"a\":1} x", "line 1, column 9"},
      {"{\"a\":01}", "line 1, column 7"},       {"{\"a\":\"\\x\"}", "line 1, column 8"},
      {"{\"a\" 1}", "line 1, column 6"},        {"[1 2]", "line 1, column 4"},
      {"{\"a\":\"\xff\"}", "line 1, column 7"}, {"{\"a\":[", "line 1, column 7"},
  };
  for (const auto& [text, where] : cases) EXPECT_THAT(message_of(text), HasSubstr(where)) << text;
}

TEST(Json, NumbersOutOfRangeNameTheirMember) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature":1e999})", "temperature"},
      {R"({"a":1,"logit_bias":{"7":123456789012345678901234567890}})", "logit_bias.7"},
      {R"({"prompt":[1,2,-9223372036854775809]})", "prompt[2]"},
      {R"({"a b":1e999})", ""},
  };
  for (const auto& [text, field] : cases) {
    auto d = JsonDocument::parse(text);
    ASSERT_FALSE(d.ok());
    EXPECT_EQ(d.error().field, field);
    EXPECT_THAT(d.error().message, HasSubstr("out of range"));
  }
}

TEST(JsonWriter, PutsCommasAndNesting) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("a").begin_array().integer(1).begin_object().end_object().null().end_array();
  w.key("b").string("x").key("c").boolean(false).key("d").begin_array().end_array().end_object();
  EXPECT_EQ(out, R"({"a":[1,{},null],"b":"x","c":false,"d":[]})");
}

TEST(JsonWriter, StringsAreAlwaysValid) {
  const auto written = [](std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
  };
  EXPECT_EQ(written("a\"b\\c\n\r\t\b\f\x01\x7f/"), R"("a\"b\\c\n\r\t\b\f\u0001\u007f/")");
  EXPECT_EQ(written("h\xC3\xA9\xF0\x9F\xA6\x80"), "\"h\xC3\xA9\xF0\x9F\xA6\x80\"");
  EXPECT_EQ(written("a\xF0\x9F"
                    "b\xFF"),
            "\"a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\"");
  EXPECT_EQ(written(std::string_view("\0x", 2)), R"("\u0000x")");
  // All pairs of bytes come back as valid JSON.
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const char text[2] = {char(a), char(b)};
      ASSERT_TRUE(JsonDocument::parse(written({text, 2})).ok()) << a << " " << b;
    }
  }
}

TEST(JsonWriter, NumbersReadBackAndAreFinite) {
  const auto written = [](float v) {
    std::string out;
    append_json_number(out, v);
    return out;
  };
  EXPECT_EQ(written(-0.5f), "-0.5");
  EXPECT_EQ(written(0.1f), "0.1");
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(written(std::nanf("")), "-9999.0");
  EXPECT_EQ(std::stof(written(-1.2345678e-20f)), -1.2345678e-20f);
}

TEST(JsonWriter, ThousandthsAreRounded) {
  const auto written = [](double v) {
    std::string out;
    JsonWriter(out).begin_array().thousandths(v).end_array();
    return out;
  };
  EXPECT_EQ(written(0), "[0.000]");
  EXPECT_EQ(written(0.0004), "[0.000]");
  EXPECT_EQ(written(0.02952), "[0.030]");
  EXPECT_EQ(written(-0.0015), "[-0.002]");
  EXPECT_EQ(written(963666.2146), "[963666.215]");
  EXPECT_EQ(written(1e18), "[1e+18]");
  EXPECT_EQ(written(std::nan("")), "[-9999.0]");
}

TEST(HttpError, HasOpenAisShape) {
  const HttpResponse r = error_response(ApiError{{ErrorCode::kInvalidArgument, "Bad \xFF.", "n"}, ""});
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.body,
            "{\"error\":{\"message\":\"Bad "
            "\xEF\xBF\xBD.\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}");
  const HttpResponse full = error_response(ApiError{{ErrorCode::kResourceExhausted, "Full.", ""}, ""});
  EXPECT_EQ(full.status, 429);
  EXPECT_THAT(full.body, HasSubstr(R"("type":"rate_limit_error","param":null,"code":"queue_full")"));
  EXPECT_THAT(full.headers, testing::Contains(testing::Pair("Retry-After", "1")));
  EXPECT_EQ(http_status(ErrorCode::kUnavailable), 503);
  EXPECT_EQ(http_status(ErrorCode::kDeadlineExceeded), 504);
}

}  // namespace
}  // namespace sluice
