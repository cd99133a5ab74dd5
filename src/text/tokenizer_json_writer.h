// A vocabulary as the files of a Hugging Face folder: what tokenizer_json.h reads, and transformers.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/vocabulary.h"

namespace sluice {

// tokenizer.json. A vocabulary without merges gets those that its scores stand for. Error (kUnsupported): a
// kind of vocabulary or a pre-tokenizer that is not written.
Result<std::string> tokenizer_json_from(const VocabularyData& data);

// tokenizer_config.json: the special tokens by name, and the chat template unless it is empty.
std::string tokenizer_config_from(const VocabularyData& data, std::string_view chat_template);

}  // namespace sluice
