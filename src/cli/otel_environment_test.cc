// OpenTelemetry's environment variables, as every SDK reads them.
#include "cli/otel_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sluice::cli {
namespace {

std::map<std::string, std::string> variables;

const char* read(const char* name) {
  const auto it = variables.find(name);
  return it == variables.end() ? nullptr : it->second.c_str();
}

class OtelEnvironment : public testing::Test {
 protected:
  Status take(std::map<std::string, std::string> set) {
    variables = std::move(set);
    tracing = {};
    return take_otel_environment(tracing, read);
  }
  TracingSettings tracing;
};

TEST_F(OtelEnvironment, NothingSetChangesNothing) {
  ASSERT_TRUE(take({{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}}).ok());
  EXPECT_EQ(tracing.endpoint, "");
  EXPECT_EQ(tracing.sample_ratio, 0.001);
  EXPECT_EQ(tracing.service_name, "sluice");
}

TEST_F(OtelEnvironment, TheCommonEndpointGetsThePathAndTheOneOfTracesDoesNot) {
  ASSERT_TRUE(take({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp/"}}).ok());
  EXPECT_EQ(tracing.endpoint, "http://c:4318/otlp/v1/traces");
  ASSERT_TRUE(take({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:9/x"}})
                  .ok());
  EXPECT_EQ(tracing.endpoint, "http://t:9/x");
}

TEST_F(OtelEnvironment, TheProtocolOfTracesCounts) {
  ASSERT_TRUE(
      take({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"}, {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}).ok());
  EXPECT_EQ(tracing.protocol, "grpc");
  ASSERT_TRUE(take({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"},
                    {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"},
                    {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}})
                  .ok());
  EXPECT_EQ(tracing.protocol, "http/protobuf");
  EXPECT_EQ(tracing.endpoint, "http://c/v1/traces");
}

TEST_F(OtelEnvironment, ResourceHeadersAndLimits) {
  ASSERT_TRUE(take({{"OTEL_SERVICE_NAME", "llm"},
                    {"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab, team=a%2Cb"},
                    {"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer x"},
                    {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"},
                    {"OTEL_BSP_SCHEDULE_DELAY", "200"},
                    {"OTEL_BSP_MAX_QUEUE_SIZE", "10"}})
                  .ok());
  EXPECT_EQ(tracing.service_name, "llm");
  EXPECT_EQ(tracing.resource_attributes, (std::vector<std::string>{"deployment.environment=lab", "team=a,b"}));
  EXPECT_EQ(tracing.headers, std::vector<std::string>{"authorization=Bearer x"});
  EXPECT_EQ(tracing.export_timeout_ms, 2500);
  EXPECT_EQ(tracing.export_interval_ms, 200);
  EXPECT_EQ(tracing.queue_requests, 10);
}

TEST_F(OtelEnvironment, Samplers) {
  ASSERT_TRUE(
      take({{"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", "0.25"}}).ok());
  EXPECT_EQ(tracing.sample_ratio, 0.25);
  ASSERT_TRUE(take({{"OTEL_TRACES_SAMPLER", "traceidratio"}}).ok());
  EXPECT_EQ(tracing.sample_ratio, 1);
  ASSERT_TRUE(take({{"OTEL_TRACES_SAMPLER", "always_off"}}).ok());
  EXPECT_EQ(tracing.sample_ratio, 0);
  EXPECT_FALSE(take({{"OTEL_TRACES_SAMPLER", "jaeger_remote"}}).ok());
  EXPECT_FALSE(take({{"OTEL_TRACES_SAMPLER", "traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", "2"}}).ok());
}

TEST_F(OtelEnvironment, OffAndWhatIsNotSpoken) {
  const std::string endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
  ASSERT_TRUE(take({{endpoint, "http://c"}, {"OTEL_SDK_DISABLED", "True"}}).ok());
  EXPECT_EQ(tracing.endpoint, "");
  ASSERT_TRUE(take({{endpoint, "http://c"}, {"OTEL_TRACES_EXPORTER", "none"}}).ok());
  EXPECT_EQ(tracing.endpoint, "");
  EXPECT_FALSE(take({{"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"}}).ok());
  EXPECT_FALSE(take({{"OTEL_EXPORTER_OTLP_TIMEOUT", "999999999"}}).ok());
}

}  // namespace
}  // namespace sluice::cli
