#include <gtest/gtest.h>

#include "cli/bench_client.h"
#include "cli/dummy_checkpoint.h"
#include "cli/memory_plan.h"

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

TEST(DummyCheckpoint, HasEveryTensorInTheFormatAskedFor) {
  for (const auto& [shape, element] : {std::pair{"smollm2-135m", WeightElement::int4},
                                       {"smollm2-135m:int8", WeightElement::int8},
                                       {"smollm2-135m:bf16", WeightElement::bf16},
                                       {"smollm2-135m:f32", WeightElement::f32}}) {
    const auto checkpoint = make_dummy_checkpoint(shape);
    ASSERT_TRUE(checkpoint.ok()) << shape;
    const auto rows = (*checkpoint)->rows("blk.0.attn_q.weight");
    ASSERT_TRUE(rows) << shape;
    EXPECT_EQ(rows->rows(), 576);
    EXPECT_EQ(rows->format().element, element);
    EXPECT_TRUE((*checkpoint)->rows("output_norm.weight")->format().is_float());
    DecodedRow a, b;
    rows->decode(1, a);
    rows->decode(1, b);
    EXPECT_EQ(a.q, b.q);
    EXPECT_EQ(a.raw, b.raw);
    EXPECT_EQ(a.q.empty(), !a.raw.empty());
  }
}

TEST(DummyCheckpoint, UnknownShapesAndFormatsAreNamed) {
  EXPECT_NE(make_dummy_checkpoint("gpt-9").error().message.find("llama-3.2-1b"), std::string::npos);
  EXPECT_NE(make_dummy_checkpoint("smollm2-135m:int3").error().message.find("int4"), std::string::npos);
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

}  // namespace
}  // namespace sluice::cli
