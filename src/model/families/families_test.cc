// Numbers of every family from both formats, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/families/family.h"
#include "model/formats/gguf_builder.h"
#include "model/formats/json_values.h"

namespace sluice {
namespace {

using testing::HasSubstr;

Result<ModelSpec> from_config(const Family& family, const std::string& text, const std::string& prefix = "") {
  Result<JsonValues> values = JsonValues::parse(text, "config.json");
  if (!values) return values.error();
  return read_config_spec(family, *values, "config.json", prefix);
}

std::string error_of(const Result<ModelSpec>& r) { return r ? "" : r.error().message; }

// The numbers that every config has; `more` is appended.
std::string config(const std::string& more) {
  return R"({"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
             "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 256, "rms_norm_eps": 1e-6)" +
         more + "}";
}

GgufBuilder header(const std::string& arch, int heads = 8, int kv_heads = 2) {
  GgufBuilder b;
  const auto key = [&](const char* name) { return arch + "." + name; };
  b.text("general.architecture", arch).u32(key("block_count"), 4).u32(key("embedding_length"), 64);
  b.u32(key("feed_forward_length"), 96).u32(key("attention.head_count"), uint32_t(heads));
  b.u32(key("attention.head_count_kv"), uint32_t(kv_heads)).u32(key("context_length"), 256);
  b.f32(key("attention.layer_norm_rms_epsilon"), 1e-6f).u32(key("vocab_size"), 100);
  return b;
}

Result<ModelSpec> from_gguf(const Family& family, const GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  auto file = GgufFile::parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m.gguf");
  if (!file) return file.error();
  return read_gguf_spec(family, **file);
}

TEST(Families, LlamaConfigOldAndNewRope) {
  for (
      const char* rope :
      {R"(, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
       R"(, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"}) {
    const Result<ModelSpec> s = from_config(kLlama, config(rope));
    ASSERT_TRUE(s.ok()) << error_of(s);
    EXPECT_EQ(s->architecture, "llama");
    EXPECT_EQ(s->layers, 4);
    EXPECT_EQ(s->head_dim, 8);
    EXPECT_FALSE(s->tied_head);
    EXPECT_FLOAT_EQ(s->attention_scale, 1 / std::sqrt(8.f));
    EXPECT_EQ(s->rope.base, 500000);
    EXPECT_EQ(s->rope.scaling, RopeSpec::Scaling::llama3);
    EXPECT_EQ(s->rope.original_context, 64);
  }
  const Result<ModelSpec> s =
      from_config(kLlama, config(R"(, "rope_scaling": {"type": "linear", "factor": 2.0}, "head_dim": 16)"));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->rope.scaling, RopeSpec::Scaling::linear);
  EXPECT_EQ(s->rope.factor, 2);
  EXPECT_EQ(s->rope.base, 10000);
  EXPECT_EQ(s->head_dim, 16);
}

TEST(Families, Windows) {
  Result<ModelSpec> s = from_config(kMistral, config(R"(, "sliding_window": 24)"));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_TRUE(s->layer_windowed(0) && s->layer_windowed(3));
  s = from_config(kMistral, config(R"(, "sliding_window": null)"));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->window, 0);
  s = from_config(kQwen2, config(R"(, "sliding_window": 32, "use_sliding_window": false)"));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->window, 0);
  EXPECT_TRUE(s->qkv_bias);
  s = from_config(kQwen2,
                  config(R"(, "sliding_window": 32, "use_sliding_window": true, "max_window_layers": 3)"));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_FALSE(s->layer_windowed(2));
  EXPECT_TRUE(s->layer_windowed(3));
}

TEST(Families, Gemma3ConfigNestedWithDefaults) {
  // As the multimodal models publish it: what equals the defaults is left out.
  const Result<ModelSpec> s = from_config(
      kGemma3, R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})",
      "text_config.");
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->heads, 8);
  EXPECT_EQ(s->kv_heads, 4);
  EXPECT_EQ(s->head_dim, 256);
  EXPECT_EQ(s->vocab, 262208);
  EXPECT_TRUE(s->tied_head && s->qk_norm && s->post_norms && s->has_local_rope);
  EXPECT_EQ(s->rope.base, 1e6f);
  EXPECT_EQ(s->rope.factor, 8);
  EXPECT_EQ(s->local_rope.base, 1e4f);
  EXPECT_EQ(s->local_rope.scaling, RopeSpec::Scaling::none);
  EXPECT_TRUE(s->layer_windowed(4));
  EXPECT_FALSE(s->layer_windowed(5));
  EXPECT_FLOAT_EQ(s->attention_scale, 1 / 16.f);
  EXPECT_FLOAT_EQ(s->embedding_scale, std::sqrt(2560.f));
}

TEST(Families, GgufNumbers) {
  Result<ModelSpec> s =
      from_gguf(kLlama, header("llama").f32("llama.rope.freq_base", 5e5f).u32("llama.rope.dimension_count", 8));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->rope.base, 5e5f);
  EXPECT_EQ(s->vocab, 100);
  EXPECT_TRUE(s->tied_head);
  EXPECT_FALSE(s->qkv_bias);

  s = from_gguf(kLlama,
                header("llama").text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->rope.scaling, RopeSpec::Scaling::linear);

  s = from_gguf(kGemma3, header("gemma3")
                             .u32("gemma3.attention.key_length", 16)
                             .u32("gemma3.attention.value_length", 16)
                             .u32("gemma3.attention.sliding_window", 512)
                             .f32("gemma3.rope.freq_base", 1e6f));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_EQ(s->head_dim, 16);
  EXPECT_TRUE(s->layer_windowed(3));  // the sixth layer would be the first global one
  EXPECT_EQ(s->local_rope.base, 1e4f);
  EXPECT_FLOAT_EQ(s->attention_scale, 0.25f);

  s = from_gguf(kGemma3, header("gemma3")
                             .u32("gemma3.attention.sliding_window", 512)
                             .array<uint8_t>("gemma3.attention.sliding_window_pattern", 7, {1, 0, 1, 0}));
  ASSERT_TRUE(s.ok()) << error_of(s);
  EXPECT_FALSE(s->layer_windowed(1));
  EXPECT_TRUE(from_gguf(kQwen3, header("qwen3"))->qk_norm);
  EXPECT_TRUE(from_gguf(kQwen2, header("qwen2"))->qkv_bias);
}

TEST(Families, RefusedByKey) {
  EXPECT_THAT(
      error_of(from_config(kLlama, config(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0})"))),
      testing::AllOf(HasSubstr("rope_scaling.rope_type"), HasSubstr("'yarn'"), HasSubstr("linear and llama3")));
  EXPECT_THAT(error_of(from_config(kLlama, config(R"(, "attention_bias": true)"))),
              HasSubstr("'attention_bias'"));
  EXPECT_THAT(error_of(from_config(kLlama, config(R"(, "hidden_act": "gelu")"))), HasSubstr("'hidden_act'"));
  EXPECT_THAT(error_of(from_config(kLlama, config(R"(, "vocab_size": 5)"))),
              HasSubstr("'vocab_size' stands twice"));
  EXPECT_THAT(error_of(from_config(kLlama, config(R"(, "head_dim": 7)"))), HasSubstr("even"));
  EXPECT_THAT(error_of(from_config(kLlama, R"({"hidden_size": 64})")),
              HasSubstr("'num_hidden_layers': is missing"));
  EXPECT_THAT(error_of(from_config(kLlama, R"({"num_hidden_layers": 1e9})")),
              HasSubstr("'num_hidden_layers': 1000000000"));
  EXPECT_THAT(error_of(from_config(kLlama, R"({"num_hidden_layers": "4"})")), HasSubstr("must be a number"));
  EXPECT_THAT(error_of(from_config(kLlama, R"({"num_hidden_layers": 2.5})")), HasSubstr("whole number"));
  for (
      const char* rope :
      {R"(, "rope_parameters": "x")", R"(, "rope_parameters": [])", R"(, "rope_scaling": 3)",
       R"(, "rope_scaling": [{"factor": 2}])",
       R"(, "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "yarn", "factor": 4})",
       R"(, "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 4})"})
    EXPECT_THAT(error_of(from_config(kLlama, config(rope))), HasSubstr("key 'rope_")) << rope;
  EXPECT_EQ(error_of(from_config(kLlama, config(R"(, "rope_parameters": null, "rope_scaling": null)"))), "");
  const auto changed = [](std::string from, std::string to) {
    std::string text = config("");
    return error_of(from_config(kLlama, text.replace(text.find(from), from.size(), to)));
  };
  EXPECT_THAT(changed("s\": 256", "s\": 1"), HasSubstr("'max_position_embeddings': 1 is not within 16"));
  EXPECT_THAT(changed("s\": 256", "s\": [99, 99]"), HasSubstr("'max_position_embeddings': must be a number"));
  EXPECT_THAT(changed("1e-6", "0"), HasSubstr("'rms_norm_eps': 0 is not within"));
  EXPECT_THAT(error_of(from_config(kLlama, "[1]")), HasSubstr("JSON object"));
  EXPECT_THAT(error_of(from_config(kLlama, "{")), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(from_config(kGemma3, config(R"(, "layer_types": ["full_attention"])"))),
              HasSubstr("1 layer types for 4 layers"));
  EXPECT_THAT(error_of(from_config(kGemma3, config(R"(, "layer_types": ["x", "x", "x", "x"])"))),
              HasSubstr("'layer_types'"));

  EXPECT_THAT(error_of(from_gguf(kLlama, header("llama", 8, 3))), HasSubstr("8 heads cannot share 3"));
  EXPECT_THAT(error_of(from_gguf(kLlama, header("llama", 0))), HasSubstr("'llama.attention.head_count': 0"));
  EXPECT_THAT(error_of(from_gguf(kQwen2, header("qwen2").u32("qwen2.expert_count", 8))), HasSubstr("experts"));
  EXPECT_THAT(error_of(from_gguf(kLlama, header("llama").text("llama.rope.scaling.type", "yarn"))),
              HasSubstr("'yarn'"));
  EXPECT_THAT(error_of(from_gguf(kLlama, header("llama").u32("llama.rope.dimension_count", 10))),
              HasSubstr("rotated"));
  EXPECT_THAT(error_of(from_gguf(kLlama, header("llama").f32("llama.rope.freq_base", NAN))),
              HasSubstr("'llama.rope.freq_base'"));
  EXPECT_THAT(supported_families(), HasSubstr("qwen3"));
}

}  // namespace
}  // namespace sluice
