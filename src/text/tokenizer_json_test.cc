#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_support.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> must_load(const std::string& json, const std::string& config = "") {
  Result<VocabularyData> data = vocabulary_from_tokenizer_json(json);
  CHECK(data.ok(), data.ok() ? "" : data.error().message.c_str());
  if (!config.empty()) CHECK(apply_tokenizer_config(config, *data).ok());
  auto made = Tokenizer::create(std::move(*data));
  CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  return std::move(*made);
}

// The golden ids are from Hugging Face tokenizers 0.23.3, which always parses special tokens and adds its
// template.
void check_golden(const std::string& name) {
  const auto tokenizer = must_load(read_file(source_path("src/text/testdata/" + name + ".json")));
  for_each_json_line(
      source_path("src/text/testdata/" + name + ".golden.jsonl"), [&](simdjson::dom::element line) {
        const std::string text{std::string_view(line["text"])};
        EXPECT_EQ(tokenizer->encode(text, true, true), id_list(line["ids"])) << name << ": " << text;
      });
}

TEST(TokenizerJson, ByteLevelWithTemplateAndAddedTokens) { check_golden("byte_level"); }
TEST(TokenizerJson, PunctuationAndDigits) { check_golden("punctuation"); }
TEST(TokenizerJson, MetaspaceAsPreTokenizer) { check_golden("metaspace"); }
TEST(TokenizerJson, NormalizersAndAPrefixSpace) { check_golden("normalized"); }
TEST(TokenizerJson, PrependAndReplaceAsNormalizers) { check_golden("prepend"); }

TEST(TokenizerJson, TinyCheckpoints) {
  for (const char* folder : {"llama-tied", "awq-g64", "gemma2-softcap", "qwen3moe"}) {
    const std::string path = case_path(std::string("tiny/") + folder + "/");
    const std::string config = read_file(path + "tokenizer_config.json");
    const auto tokenizer = must_load(read_file(path + "tokenizer.json"), config);
    EXPECT_EQ(tokenizer->size(), 384);
    EXPECT_EQ(tokenizer->piece(tokenizer->bos_id(), ControlText::kShow), "<|bos|>");
    EXPECT_TRUE(tokenizer->end_of_generation(tokenizer->find("<|eos|>")));
    EXPECT_TRUE(tokenizer->adds_bos());
    const std::string text = "def f(x):\n    return 'größer' # 東京 👍\n";
    const std::vector<int32_t> ids = tokenizer->encode(text, true, true);
    EXPECT_EQ(ids[0], tokenizer->bos_id());
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_EQ(tokenizer->encode("<|user|>", false, true), (std::vector<int32_t>{2}));
    EXPECT_GT(tokenizer->encode("<|user|>", false, false).size(), 1u);
    EXPECT_THAT(*chat_template_from_config(config), HasSubstr("add_generation_prompt"));
  }
}

TEST(TokenizerJson, ConfigFiles) {
  const std::string json = read_file(source_path("src/text/testdata/byte_level.json"));
  VocabularyData data = *vocabulary_from_tokenizer_json(json);
  ASSERT_TRUE(
      apply_tokenizer_config(R"({"bos_token":{"content":"</s>"},"eos_token":"<unk>","pad_token":"nothing",
                                        "add_bos_token":false,"add_eos_token":true})",
                             data)
          .ok());
  EXPECT_EQ(data.tokens[size_t(data.bos_id)], "</s>");
  EXPECT_EQ(data.tokens[size_t(data.eos_id)], "<unk>");
  EXPECT_EQ(data.pad_id, -1);
  EXPECT_EQ(data.add_bos, false);
  EXPECT_EQ(data.add_eos, true);
  ASSERT_TRUE(apply_generation_config(R"({"eos_token_id":[1,7]})", data).ok());
  ASSERT_TRUE(apply_generation_config(R"({"eos_token_id":9})", data).ok());
  ASSERT_TRUE(apply_generation_config(R"({"eos_token_id":null})", data).ok());
  for (const char* wrong : {"-4", "\"1\"", "1.5", "true", "[1,\"2\"]", "99999999999", "{}"}) {
    VocabularyData scratch;
    const Status status = apply_generation_config(std::string(R"({"eos_token_id":)") + wrong + "}", scratch);
    ASSERT_FALSE(status.ok()) << wrong;
    EXPECT_THAT(status.error().message, HasSubstr("'eos_token_id'"));
  }
  EXPECT_EQ(data.end_of_generation_ids, (std::vector<int32_t>{1, 7, 9}));
  EXPECT_FALSE(apply_tokenizer_config("[]", data).ok());
  EXPECT_EQ(*chat_template_from_config("{}"), "");
  EXPECT_EQ(*chat_template_from_config(R"({"chat_template":"x"})"), "x");
  EXPECT_EQ(*chat_template_from_config(
                R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})"),
            "d");
  EXPECT_FALSE(chat_template_from_config("{").ok());
}

TEST(TokenizerJson, BadFilesAreErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "tokenizer.json: not valid JSON: it is empty"},
      {"[]", "not an object"},
      {"{}", "no model"},
      {R"({"model":{"type":"WordPiece"}})", "model type 'WordPiece' is not supported"},
      {R"({"model":{}})", "model has neither a type nor merges"},
      {R"({"model":{"type":"BPE","vocab":[],"merges":[]}})", "vocab is not an object"},
      {R"({"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}})", "not a number"},
      {R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", "token id -1"},
      {R"({"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}})", "token id 99999999"},
      {R"({"model":{"type":"BPE","vocab":{},"merges":[]}})", "model.vocab is empty"},
      {R"({"model":{"type":"Unigram","vocab":[]}})", "model.vocab is empty"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})", "two tokens have the id 0"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"id":1,"content":"x"},{"id":1,"content":"y"}]})",
       "two tokens have the id 1"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}})", "'ab' is not in model.vocab"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"aq":1},"merges":[["a","q"]]}})", "'q' is not in model.vocab"},
      {R"({"model":{"type":"BPE","vocab":{"a":0}}})", "merges"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[1]}})", "neither text nor a pair"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "neither text nor a pair"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a b","c"]]}})", "with spaces"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}})",
       "end_of_word_suffix"},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", "pair of text and score"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"content":"x"}]})",
       "added token"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"normalizer":{"type":"Nope"}})",
       "normalizer 'Nope'"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Nope"}})",
       "pre-tokenizer 'Nope'"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"post_processor":{"type":"Nope"}})",
       "post-processor"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"}}})",
       "behavior"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"post_processor":{"type":"TemplateProcessing","single":
          [{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[77]}}}})",
       "special token id 77"},
  };
  for (const auto& [json, message] : cases) {
    const Result<VocabularyData> data = vocabulary_from_tokenizer_json(json);
    ASSERT_FALSE(data.ok()) << json;
    EXPECT_THAT(data.error().message, HasSubstr(message)) << json;
  }
}

TEST(TokenizerJson, BadPatternsAreRefusedOnCreation) {
  Result<VocabularyData> data = vocabulary_from_tokenizer_json(
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
         {"type":"Split","pattern":{"Regex":"(unclosed"},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false,"add_prefix_space":false}]}})");
  ASSERT_TRUE(data.ok());
  const auto made = Tokenizer::create(std::move(*data));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(made.error().message, HasSubstr("does not compile"));
}

// A pattern that backtracks without end must stop at its step limit and lose no text.
TEST(TokenizerJson, CatastrophicPatternsAreBounded) {
  const auto tokenizer = must_load(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
         {"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false,
         "add_prefix_space":false}]}})");
  std::vector<int32_t> expected(60, 0);
  expected.push_back(1);
  EXPECT_EQ(tokenizer->encode(std::string(60, 'a') + "b", false, false), expected);
}

}  // namespace
}  // namespace sluice
