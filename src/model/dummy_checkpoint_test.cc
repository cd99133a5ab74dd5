#include "model/dummy_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/formats/rows.h"
#include "model/slots.h"

namespace sluice {
namespace {

TEST(DummyCheckpoint, HasEveryTensorInTheFormatAskedFor) {
  for (const auto& [shape, element] : {std::pair{"smollm2-135m", WeightElement::int4},
                                       {"smollm2-135m:int8", WeightElement::int8},
                                       {"smollm2-135m:w8a8", WeightElement::int8},
                                       {"smollm2-135m:fp8", WeightElement::fp8},
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

// What a device makes up and what the host makes up may differ in value, not in size.
TEST(DummyCheckpoint, RowsHaveTheDeviationThatTheyName) {
  for (const char* format : {"int4", "awq", "int8", "w8a8", "fp8", "bf16", "f16", "f32"}) {
    const auto checkpoint = make_dummy_checkpoint(std::string("smollm2-135m:") + format);
    ASSERT_TRUE(checkpoint.ok());
    const auto rows = (*checkpoint)->rows("blk.1.ffn_down.weight");
    ASSERT_TRUE(rows && rows->synthetic());
    EXPECT_NEAR(rows->synthetic()->deviation, 1 / std::sqrt(1536.0), 1e-6);
    double sum = 0, squares = 0;
    std::vector<float> row(1536);
    DecodedRow scratch;
    for (int r = 0; r < 32; ++r) {
      decode_f32(*rows, r, scratch, row.data());
      for (const float x : row) sum += x, squares += double(x) * x;
    }
    const double n = 32 * 1536, deviation = rows->synthetic()->deviation;
    EXPECT_NEAR(sum / n, 0, 0.03 * deviation) << format;
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.03 * deviation) << format;
  }
}

// Eight bits with a scale for each row are of the layers' linears, as in published checkpoints.
TEST(DummyCheckpoint, EightBitsLeaveEmbeddingAndHeadAlone) {
  const auto checkpoint = make_dummy_checkpoint("llama-3.1-8b:fp8");
  ASSERT_TRUE(checkpoint.ok());
  for (const char* name : {"token_embd.weight", "output.weight"})
    EXPECT_EQ((*checkpoint)->rows(name)->format(), (WeightFormat{WeightElement::bf16})) << name;
  EXPECT_EQ((*checkpoint)->rows("blk.3.ffn_down.weight")->format(),
            (WeightFormat{WeightElement::fp8, 14336, false}));
}

// As published checkpoints: groups of 128 where they divide the columns, embedding and head left as they were.
TEST(DummyCheckpoint, AwqIsOfTheLayersAlone) {
  const auto checkpoint = make_dummy_checkpoint("smollm2-135m:awq");
  ASSERT_TRUE(checkpoint.ok());
  const auto format = [&](const char* name) { return (*checkpoint)->rows(name)->format(); };
  EXPECT_EQ(format("blk.1.ffn_down.weight"), (WeightFormat{WeightElement::int4, 128, true}));
  EXPECT_EQ(format("blk.1.attn_q.weight"), (WeightFormat{WeightElement::int4, 64, true}));
  EXPECT_EQ(format("token_embd.weight"), WeightFormat{WeightElement::bf16});
}

TEST(DummyCheckpoint, TensorsDifferAndNormsAreOne) {
  const auto checkpoint = make_dummy_checkpoint("qwen2.5-0.5b");
  ASSERT_TRUE(checkpoint.ok());
  const auto gate = (*checkpoint)->rows("blk.0.ffn_gate.weight"),
             up = (*checkpoint)->rows("blk.0.ffn_up.weight");
  EXPECT_NE(gate->synthetic()->seed, up->synthetic()->seed);
  DecodedRow scratch;
  std::vector<float> row(896);
  decode_f32(*(*checkpoint)->rows("blk.0.attn_norm.weight"), 0, scratch, row.data());
  EXPECT_EQ(row, std::vector<float>(896, 1.f));
  decode_f32(*(*checkpoint)->rows("blk.0.attn_q.bias"), 0, scratch, row.data());
  EXPECT_EQ(row, std::vector<float>(896, 0.f));
}

TEST(DummyCheckpoint, ShapesAreThePublishedOnes) {
  const auto parameters = [](const char* shape) {
    const auto opened = open_checkpoint(std::string("dummy:") + shape);
    CHECK(opened.ok());
    double n = 0;
    for (const Slot& slot : slots_of((*opened)->spec())) n += double(slot.rows) * double(slot.cols);
    return n;
  };
  EXPECT_EQ(parameters("llama-3.1-8b"), 8030261248.0);
  EXPECT_EQ(parameters("llama-3.2-1b"), 1235814400.0);
  EXPECT_EQ(parameters("llama-3.1-70b"), 70553706496.0);
  EXPECT_EQ(parameters("qwen3-8b"), 8190735360.0);
}

TEST(DummyCheckpoint, UnknownShapesAndFormatsAreNamed) {
  EXPECT_NE(make_dummy_checkpoint("gpt-9").error().message.find("llama-3.2-1b"), std::string::npos);
  EXPECT_NE(make_dummy_checkpoint("smollm2-135m:int3").error().message.find("int4"), std::string::npos);
}

}  // namespace
}  // namespace sluice
