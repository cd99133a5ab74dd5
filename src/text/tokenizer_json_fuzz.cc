// Any bytes as tokenizer.json: an Error or a tokenizer that encodes and decodes without harm.
#include <cstdint>

#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  auto vocabulary = sluice::vocabulary_from_tokenizer_json(json);
  if (!vocabulary) return 0;
  (void)sluice::apply_tokenizer_config(json, *vocabulary);
  (void)sluice::apply_generation_config(json, *vocabulary);
  (void)sluice::chat_template_from_config(json);
  if (vocabulary->tokens.size() > 100'000)
    return 0;  // one huge id is legal, and slow to try thousands of times
  auto tokenizer = sluice::Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) return 0;
  for (const std::string_view text :
       {std::string_view("Hello  World's 123 \n\n ü你好 <s><|x|>"), json.substr(0, 200)}) {
    const auto ids = (*tokenizer)->encode(text, true, true);
    for (const int32_t id : ids) CHECK(id >= 0 && id < (*tokenizer)->size());
    (void)(*tokenizer)->decode(ids, sluice::ControlText::kShow);
  }
  return 0;
}
