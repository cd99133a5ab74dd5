#include "observe/otlp_endpoint.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(OtlpUrl, PortAndPathHaveDefaults) {
  const auto parts = [](const std::string& url) {
    auto parsed = parse_otlp_url(url, OtlpProtocol::http_protobuf);
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
    auto parsed = parse_otlp_url(url, OtlpProtocol::http_protobuf);
    ASSERT_FALSE(parsed.ok()) << url;
    EXPECT_EQ(parsed.error().field, "tracing.endpoint");
  }
}

TEST(OtlpUrl, GrpcHasAPortOfItsOwnAndNoPath) {
  auto parsed = parse_otlp_url("http://[::1]/", OtlpProtocol::grpc);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->authority(), "[::1]:4317");
  EXPECT_EQ(parsed->path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
  EXPECT_EQ(parse_otlp_url("http://collector/v1/traces", OtlpProtocol::grpc)->authority(), "collector:4317");
  auto refused = parse_otlp_url("http://collector:4318/otlp/v1/traces", OtlpProtocol::grpc);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("gRPC has no path"), std::string::npos);
}

}  // namespace
}  // namespace sluice
