// What a checkpoint says about using the model: vocabulary, sampling defaults, chat template.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/served_model.h"
#include "model/checkpoint.h"
#include "text/vocabulary.h"

namespace sluice {

struct ModelSettings {
  GenerationDefaults defaults;  // generation_config.json
  std::string chat_template;    // empty: none
  std::string template_origin;  // the file, or file and key, for messages
};

// A file that is absent says nothing; one that is broken is an error that names it. `template_file` overrides
// the model's own template.
Result<ModelSettings> read_settings(const Checkpoint& checkpoint, const std::string& template_file);

// `path` serves messages. For tests.
Result<GenerationDefaults> parse_generation_config(std::string_view json, const std::string& path);

// The vocabulary, whichever file holds it, with the end ids that the files beside it name.
Result<VocabularyData> read_vocabulary(const Checkpoint& checkpoint);

}  // namespace sluice
