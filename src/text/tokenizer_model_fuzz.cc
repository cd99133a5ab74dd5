// Any bytes as tokenizer.model: an Error or a tokenizer that encodes and decodes without harm.
#include <cstdint>

#include "text/tokenizer.h"
#include "text/tokenizer_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto vocabulary = sluice::vocabulary_from_sentencepiece(bytes);
  if (!vocabulary) return 0;
  auto tokenizer = sluice::Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) return 0;
  for (const std::string_view text :
       {std::string_view("Hello  World's 123 \n\n ü你好 ▁<s>"), bytes.substr(0, 200)}) {
    const auto ids = (*tokenizer)->encode(text, true, true);
    for (const int32_t id : ids) CHECK(id >= 0 && id < (*tokenizer)->size());
    (void)(*tokenizer)->decode(ids, sluice::ControlText::kShow);
  }
  return 0;
}
