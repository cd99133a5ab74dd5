// Reader of SentencePiece's tokenizer.model (a protocol buffer, decoded by hand). Input is not trusted.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/vocabulary.h"

namespace sluice {

// Models of type BPE and Unigram; kUnsupported for words and characters. Whether BOS is added is not in the
// file: see apply_tokenizer_config() in tokenizer_json.h.
Result<VocabularyData> vocabulary_from_sentencepiece(std::string_view bytes);

}  // namespace sluice
