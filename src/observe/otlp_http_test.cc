#include "observe/otlp_http.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(OtlpUrl, PortAndPathHaveDefaults) {
  const auto parts = [](const std::string& url) {
    auto parsed = parse_otlp_url(url);
    return parsed.ok() ? parsed->host + "|" + parsed->port + "|" + parsed->path : parsed.error().message;
  };
  EXPECT_EQ(parts("http://collector"), "collector|4318|/v1/traces");
  EXPECT_EQ(parts("http://collector:14318/"), "collector|14318|/v1/traces");
  EXPECT_EQ(parts("http://10.0.0.1:80/otlp/v1/traces"), "10.0.0.1|80|/otlp/v1/traces");
  EXPECT_EQ(parts("http://[::1]:4318"), "::1|4318|/v1/traces");
  EXPECT_EQ(parts("http://[::1]"), "::1|4318|/v1/traces");
}

TEST(OtlpUrl, WhatCannotBeSentToIsRefused) {
  for (const char* url : {"", "collector:4318", "https://collector", "grpc://collector:4317", "http://",
                          "http://:4318", "http://collector:0", "http://collector:65536", "http://collector:x",
                          "http://a b", "http://collector/\r\nX: y"}) {
    auto parsed = parse_otlp_url(url);
    ASSERT_FALSE(parsed.ok()) << url;
    EXPECT_EQ(parsed.error().field, "tracing.endpoint");
  }
}

// A port that nobody listens on: an answer, not an exception, and each time anew.
TEST(OtlpHttp, ACollectorThatIsAwayIsUnreachable) {
  TracingSettings settings;
  settings.endpoint = "http://127.0.0.1:1";
  auto sink = OtlpHttp::create(settings);
  ASSERT_TRUE(sink.ok());
  for (int i = 0; i < 2; ++i) {
    const TraceSink::Answer answer = (*sink)->post("x");
    EXPECT_EQ(answer.outcome, TraceSink::Outcome::unreachable);
    EXPECT_NE(answer.why, "");
  }
}

}  // namespace
}  // namespace sluice
