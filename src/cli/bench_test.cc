#include <gtest/gtest.h>

#include "cli/attribution_table.h"
#include "cli/bench_client.h"
#include "cli/memory_plan.h"
#include "model/dummy_checkpoint.h"
#include "model/weight_bytes.h"

namespace sluice::cli {
namespace {

TEST(ParseTarget, ReadsWhatServersAreCalled) {
  const Result<Target> plain = parse_target("http://127.0.0.1:8000");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host + " " + plain->port + " " + plain->prefix, "127.0.0.1 8000 ");
  EXPECT_EQ(parse_target("http://host")->port, "80");
  EXPECT_EQ(parse_target("http://[::1]:9")->host, "::1");
  EXPECT_EQ(parse_target("http://[::1]:9")->port, "9");
  // Users paste the base URL of SDKs as often as the server's.
  EXPECT_EQ(parse_target("http://h:1/v1/")->prefix, "");
  EXPECT_EQ(parse_target("http://h:1/models/a/v1")->prefix, "/models/a");
}

TEST(ParseTarget, RefusesTheRest) {
  for (const char* url : {"", "h:1", "https://h", "http://", "http://:80", "http://h:", "http://h:0",
                          "http://h:65536", "http://h:8x", "http://[::1"})
    EXPECT_FALSE(parse_target(url).ok()) << url;
}

TEST(MemoryPlan, CountsTheCacheByContext) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = make_dummy_checkpoint("smollm2-135m");
  ASSERT_TRUE(checkpoint.ok());
  Config config;
  const MemoryPlan full = plan_memory(**checkpoint, config);
  EXPECT_EQ(full.kv_bytes_per_token, 2u * 3 * 64 * 2 * 30);
  EXPECT_EQ(full.kv_bytes_full, full.kv_bytes_per_token * 8192);
  config.model.engine.max_context = 100;
  EXPECT_EQ(plan_memory(**checkpoint, config).kv_bytes_full, full.kv_bytes_per_token * 100);
}

TEST(MemoryPlan, CanonicalBytes) {
  EXPECT_EQ(canonical_bytes({WeightElement::int4, 32, true}, 64), 32u + 2 * 4);
  EXPECT_EQ(canonical_bytes({WeightElement::int8, 16, false}, 64), 64u + 4 * 2);
  EXPECT_EQ(canonical_bytes({WeightElement::bf16}, 64), 128u);
}

TEST(AttributionTable, SaysWhatTookTimeAndLeavesOutWhatDidNot) {
  const auto table = attribution_table(
      R"({"complete":false,"requests":20,"mean_ms":100,"spans":[{"name":"queue","mean_ms":75,"share":0.75},)"
      R"({"name":"paused","mean_ms":0,"share":0},{"name":"decode","mean_ms":25,"share":0.25}],)"
      R"("slowest":{"requests":1,"mean_ms":400,"spans":[{"name":"queue","mean_ms":360,"share":0.9},)"
      R"({"name":"paused","mean_ms":0,"share":0},{"name":"decode","mean_ms":40,"share":0.1}]}})");
  ASSERT_TRUE(table.ok());
  EXPECT_NE(table->find("queue                75.00    75.0%          360.00    90.0%"), std::string::npos)
      << *table;
  EXPECT_EQ(table->find("paused"), std::string::npos);
  EXPECT_NE(table->find("of 20 requests, the last that the server keeps"), std::string::npos);
  EXPECT_FALSE(attribution_table("<html>").ok());
  EXPECT_FALSE(attribution_table("{}").ok());
}

}  // namespace
}  // namespace sluice::cli
