// Side files of a model folder, and the vocabulary in a GGUF header.
#include "engine/model_settings.h"

#include <gtest/gtest.h>

#include "engine/gguf_vocabulary.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_builder.h"

namespace sluice {
namespace {

TEST(GenerationConfig, ReadsTheDefaultsThatAreThere) {
  const auto d =
      parse_generation_config(R"({"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true})", "f");
  ASSERT_TRUE(d.ok());
  EXPECT_FLOAT_EQ(*d->temperature, 0.6f);
  EXPECT_EQ(*d->top_k, 20);
  EXPECT_FALSE(d->top_p.has_value());
  EXPECT_FALSE(d->min_p.has_value());
}

TEST(GenerationConfig, ValuesThatMakeNoSenseAreNamed) {
  for (const auto& [text, key] : {std::pair{R"({"temperature": "x"})", "'temperature'"},
                                  {R"({"temperature": -1})", "'temperature'"},
                                  {R"({"temperature": true})", "'temperature'"},
                                  {R"({"top_p": 5})", "'top_p'"},
                                  {R"({"top_p": 0})", "'top_p'"},
                                  {R"({"min_p": [0.1]})", "'min_p'"},
                                  {R"({"top_k": 2.5})", "'top_k'"},
                                  {R"({"top_k": {}})", "'top_k'"},
                                  {R"({"repetition_penalty": 0})", "'repetition_penalty'"}}) {
    const auto d = parse_generation_config(text, "dir/generation_config.json");
    ASSERT_FALSE(d.ok()) << text;
    EXPECT_NE(d.error().message.find(std::string("dir/generation_config.json: key ") + key), std::string::npos)
        << d.error().message;
  }
}

TEST(GgufVocabulary, IdsThatAreNoTokensAreNamed) {
  const auto read = [](const char* key, uint32_t id) {
    const std::string bytes = GgufBuilder()
                                  .text("tokenizer.ggml.model", "gpt2")
                                  .texts("tokenizer.ggml.tokens", {"a", "b"})
                                  .u32(std::string("tokenizer.ggml.") + key, id)
                                  .bytes();
    auto file = GgufFile::parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m.gguf");
    EXPECT_TRUE(file.ok());
    const auto v = gguf_vocabulary(**file);
    return v.ok() ? std::string() : v.error().message;
  };
  EXPECT_EQ(read("eos_token_id", 1), "");
  EXPECT_EQ(read("padding_token_id", 4294967295u), "");
  EXPECT_NE(read("eos_token_id", 4294967295u).find("m.gguf: tokenizer.ggml.eos_token_id"), std::string::npos);
  EXPECT_NE(read("eos_token_id", 2).find("m.gguf: tokenizer.ggml.eos_token_id"), std::string::npos);
  EXPECT_NE(read("bos_token_id", 7).find("m.gguf: tokenizer.ggml.bos_token_id"), std::string::npos);
}

TEST(GenerationConfig, ABrokenFileIsNamed) {
  for (const char* text : {"", "{", "[1]", "3", "{\"a\": }"}) {
    const auto d = parse_generation_config(text, "dir/generation_config.json");
    ASSERT_FALSE(d.ok()) << text;
    EXPECT_NE(d.error().message.find("dir/generation_config.json"), std::string::npos);
  }
}

TEST(GgufVocabulary, ReadsBothRealModels) {
  const auto read = [](const std::string& name) {
    auto file = GgufFile::open(std::string(SLUICE_SOURCE_DIR) + "/models/" + name);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
    return gguf_vocabulary(**file);
  };
  const auto smol = read("SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(smol.ok()) << smol.error().message;
  EXPECT_EQ(smol->kind, VocabularyKind::kByteLevelBpe);
  EXPECT_EQ(smol->pre, "smollm");
  EXPECT_EQ(smol->tokens.size(), 49152u);
  EXPECT_EQ(smol->merges.size(), 48900u);
  EXPECT_EQ(smol->eos_id, 2);
  const auto gemma = read("gemma-3-270m-q4_k_m.gguf");
  ASSERT_TRUE(gemma.ok()) << gemma.error().message;
  EXPECT_EQ(gemma->kind, VocabularyKind::kSentencePieceBpe);
  EXPECT_EQ(gemma->tokens.size(), 262144u);
  EXPECT_EQ(gemma->bos_id, 2);
  EXPECT_TRUE(gemma->add_bos.value());
}

}  // namespace
}  // namespace sluice
