#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "text/test_support.h"

namespace sluice {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

ChatTemplate must_create(const std::string& source, const std::string& bos = "",
                         const std::string& eos = "</s>") {
  Result<ChatTemplate> made = ChatTemplate::create(source, bos, eos);
  CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  return std::move(*made);
}

void check_cases(const ChatTemplate& chat, const std::string& file, const Tokenizer& tokenizer) {
  for_each_json_line(case_path("chat/" + file), [&](simdjson::dom::element line) {
    const std::string messages = simdjson::minify(line["request"]["messages"]);
    const Result<std::string> prompt = chat.render({.messages_json = messages});
    simdjson::dom::element expected;
    if (line["prompt"].get(expected) != simdjson::SUCCESS) {
      ASSERT_FALSE(prompt.ok()) << std::string_view(line["id"]);
      EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(prompt.error().message, HasSubstr("must alternate"));
      EXPECT_THAT(prompt.error().message, HasSubstr("(line 15, column 27)"));
      EXPECT_THAT(prompt.error().message, ::testing::Not(HasSubstr("\n")));
      return;
    }
    ASSERT_TRUE(prompt.ok()) << std::string_view(line["id"]) << " " << prompt.error().message;
    EXPECT_EQ(*prompt, std::string_view(expected)) << std::string_view(line["id"]);
    EXPECT_EQ(tokenizer.encode(*prompt, true, true), id_list(line["ids"])) << std::string_view(line["id"]);
  });
}

TEST(ChatTemplate, AgreesWithLlamaCppOnSmolLm2) {
  const std::string source =
      read_gguf_text(source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf")).chat_template;
  check_cases(must_create(source), "SmolLM2-135M-Instruct.given.jsonl", smollm_tokenizer());
}

TEST(ChatTemplate, AgreesWithLlamaCppOnGemma3) {
  const std::string source = read_file(case_path("chat/gemma3-it/template.jinja"));
  check_cases(must_create(source), "gemma3-it/cases.jsonl", gemma_tokenizer());
}

}  // namespace
}  // namespace sluice
