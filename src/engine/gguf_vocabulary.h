// The vocabulary in a GGUF header, as text's plain data. Text knows no file of a model and model knows no text,
// so the two meet here.
#pragma once

#include "base/result.h"
#include "model/formats/gguf.h"
#include "text/vocabulary.h"

namespace sluice {

// Errors name file and key: no vocabulary in the header, a kind of tokenizer that is unknown, lists whose
// lengths differ. What the ids and merges mean is checked by Tokenizer::create.
Result<VocabularyData> gguf_vocabulary(const GgufFile& file);

}  // namespace sluice
