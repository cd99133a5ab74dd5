#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/test_support.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using namespace testing_support;
using Ids = std::vector<int32_t>;

void check_cases(const Tokenizer& tokenizer, const std::string& file) {
  for_each_json_line(case_path("tokenize/" + file), [&](simdjson::dom::element line) {
    const std::string text{std::string_view(line["text"])};
    for (const int special : {0, 1}) {
      for (const int parse : {0, 1}) {
        const std::string key = "ids_s" + std::to_string(special) + "_p" + std::to_string(parse);
        EXPECT_EQ(tokenizer.encode(text, special != 0, parse != 0), id_list(line[key]))
            << std::string_view(line["id"]) << " " << key << " " << text.substr(0, 200);
      }
    }
    const std::string decoded = replace_invalid_utf8(tokenizer.decode(id_list(line["ids_s0_p0"])));
    const std::string expected = line["detok"].is_bool() ? text : std::string(std::string_view(line["detok"]));
    EXPECT_EQ(decoded, expected) << std::string_view(line["id"]);
  });
}

TEST(Tokenizer, AgreesWithLlamaCppOnSmolLm2) {
  check_cases(smollm_tokenizer(), "SmolLM2-135M-Instruct.given.jsonl");
}

TEST(Tokenizer, AgreesWithLlamaCppOnGemma3) { check_cases(gemma_tokenizer(), "gemma-3-270m.given.jsonl"); }

}  // namespace
}  // namespace sluice
