// Tokenizer, template and defaults of a checkpoint, made and checked as serving needs them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/served_model.h"
#include "model/checkpoint.h"

namespace sluice {

struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;  // nothing: the model has none
  GenerationDefaults defaults;
};

// `template_file` overrides the model's own template; empty: none. Errors name the file, in one line.
Result<ModelText> load_text(const Checkpoint& checkpoint, const std::string& template_file);

}  // namespace sluice
