// What the tests of this room share: the vocabulary part of a GGUF file, and lines of JSON. Test code only:
// files are trusted, and a broken one ends the test program.
#pragma once

#include <simdjson.h>

#include <functional>
#include <string>

#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace sluice::testing_support {

std::string source_path(const std::string& relative);  // under the source root
std::string case_path(const std::string& relative);    // under shared/cases
std::string read_file(const std::string& path);

struct GgufText {
  VocabularyData vocabulary;
  std::string chat_template;
};
GgufText read_gguf_text(const std::string& path);

const Tokenizer& smollm_tokenizer();  // read once
const Tokenizer& gemma_tokenizer();

// Calls f with each line of a .jsonl file.
void for_each_json_line(const std::string& path, const std::function<void(simdjson::dom::element)>& f);
std::vector<int32_t> id_list(simdjson::dom::element array);

}  // namespace sluice::testing_support
