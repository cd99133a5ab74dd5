// Readers of Hugging Face tokenizer files. Input is not trusted: everything wrong with it is an Error.
// Pure functions, any thread. Peak memory is about four times the file.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/vocabulary.h"

namespace sluice {

// tokenizer.json: models BPE and Unigram; kUnsupported names what is not understood (WordPiece, a rare
// pre-tokenizer).
Result<VocabularyData> vocabulary_from_tokenizer_json(std::string_view json);

// tokenizer_config.json: the tokens it names as BOS, EOS, UNK and PAD, and add_bos_token, add_eos_token. Names
// that are no token of the vocabulary are passed over.
Status apply_tokenizer_config(std::string_view json, VocabularyData& data);

// generation_config.json or config.json: eos_token_id, a number or several, as further ends of generation.
Status apply_generation_config(std::string_view json, VocabularyData& data);

// chat_template of tokenizer_config.json; of several named ones "default". "": there is none.
Result<std::string> chat_template_from_config(std::string_view json);

}  // namespace sluice
