// Needs no card.
#include "tensor/cuda/needs.h"

#include <gtest/gtest.h>

namespace sluice::cuda {
namespace {

DeviceNeeds llama_8b() {
  return {.hidden = 4096,
          .ffn = 14336,
          .vocab = 128256,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .block_tokens = 16,
          .step_tokens = 2048,
          .max_sequences = 256};
}

struct Refusal {
  const char* field;
  const char* said;
  void (*change)(DeviceNeeds&);
};

TEST(Needs, WhatThereAreKernelsForPasses) {
  EXPECT_TRUE(check_needs(llama_8b()).ok());
  for (int width : {8, 16, 32, 64, 80, 96, 128, 256})
    for (int block : {16, 32, 64}) {
      DeviceNeeds needs = llama_8b();
      needs.head_dim = width, needs.block_tokens = block;
      EXPECT_TRUE(check_needs(needs).ok()) << width << " " << block;
    }
  for (int width : {64, 128, 256}) {
    DeviceNeeds needs = llama_8b();
    needs.head_dim = width, needs.block_tokens = 64, needs.kv_tiers = true;
    EXPECT_TRUE(check_needs(needs).ok()) << width << " with small tiers";
  }
}

TEST(Needs, WhatThereAreNoneForIsNamed) {
  const Refusal refusals[] = {
      {"engine.max_sequences", "1024", [](DeviceNeeds& n) { n.max_sequences = 1025; }},
      {"engine.step_tokens", "65535", [](DeviceNeeds& n) { n.step_tokens = 65536; }},
      {"engine.block_tokens", "16, 32 or 64", [](DeviceNeeds& n) { n.block_tokens = 8; }},
      {"", "192", [](DeviceNeeds& n) { n.head_dim = 192; }},
      {"", "17 for 1", [](DeviceNeeds& n) { n.heads = 17, n.kv_heads = 1; }},
      {"", "16384 hidden", [](DeviceNeeds& n) { n.hidden = 16392; }},
      {"", "4100 hidden", [](DeviceNeeds& n) { n.hidden = 4100; }},
      {"", "14340 feed-forward", [](DeviceNeeds& n) { n.ffn = 14340; }},
      {"", "1000000", [](DeviceNeeds& n) { n.vocab = 1000000; }},
      {"engine.block_tokens", "64 tokens, not 16", [](DeviceNeeds& n) { n.kv_tiers = true; }},
      {"kv.precision", "heads of 80",
       [](DeviceNeeds& n) { n.kv_tiers = true, n.block_tokens = 64, n.head_dim = 80; }},
      {"kv.precision", "18 for 2",
       [](DeviceNeeds& n) { n.kv_tiers = true, n.block_tokens = 64, n.heads = 18, n.kv_heads = 2; }},
  };
  for (const Refusal& r : refusals) {
    DeviceNeeds needs = llama_8b();
    r.change(needs);
    const Status refused = check_needs(needs);
    ASSERT_FALSE(refused.ok()) << r.said;
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(refused.error().field, r.field);
    EXPECT_NE(refused.error().message.find(r.said), std::string::npos) << refused.error().message;
  }
}

}  // namespace
}  // namespace sluice::cuda
