#include "engine/model_settings.h"

#include <fmt/format.h>

#include <cmath>

#include "base/mapped_file.h"
#include "engine/gguf_vocabulary.h"
#include "model/formats/json_values.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_model.h"

namespace sluice {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

// The file's text, or nothing where it is absent.
Result<std::optional<std::string>> optional_file(const Checkpoint& checkpoint, const char* name) {
  auto text = checkpoint.side_file(name);
  if (text) return std::optional<std::string>(std::move(*text));
  if (text.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return std::move(text).error();
}

Error in_file(const Checkpoint& checkpoint, const char* name, Error error) {
  error.message = fmt::format("{}/{}: {}", checkpoint.path(), name, error.message);
  return error;
}

template <typename T>
void read_number(const KeyValues& from, std::string_view key, std::optional<T>& to) {
  const auto value = from.number(key);
  if (value && std::isfinite(*value) && std::abs(*value) < 1e9) to = T(*value);
}

Status read_template_file(const std::string& path, ModelSettings& settings) {
  auto file = MappedFile::open(path);
  if (!file) return std::move(file).error();
  const auto bytes = file->bytes();
  if (bytes.size() > kMaxTemplateBytes)
    return Error{ErrorCode::kTooLarge, fmt::format("{}: too large for a chat template", path)};
  settings.chat_template.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  settings.template_origin = path;
  return {};
}

Status read_folder_settings(const Checkpoint& checkpoint, ModelSettings& settings) {
  auto generation = optional_file(checkpoint, "generation_config.json");
  if (!generation) return std::move(generation).error();
  if (*generation) {
    auto defaults = parse_generation_config(**generation, checkpoint.path() + "/generation_config.json");
    if (!defaults) return std::move(defaults).error();
    settings.defaults = *defaults;
  }
  auto config = optional_file(checkpoint, "tokenizer_config.json");
  if (!config) return std::move(config).error();
  if (*config) {
    auto text = chat_template_from_config(**config);
    if (!text) return in_file(checkpoint, "tokenizer_config.json", std::move(text).error());
    settings.chat_template = std::move(*text);
    settings.template_origin = checkpoint.path() + "/tokenizer_config.json: chat_template";
  }
  auto jinja = optional_file(checkpoint, "chat_template.jinja");
  if (!jinja) return std::move(jinja).error();
  if (*jinja) {
    settings.chat_template = std::move(**jinja);
    settings.template_origin = checkpoint.path() + "/chat_template.jinja";
  }
  return {};
}

// Ids that end a text: generation_config.json's, or where there is none config.json's.
Status add_end_ids(const Checkpoint& checkpoint, VocabularyData& vocabulary) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    auto text = optional_file(checkpoint, name);
    if (!text) return std::move(text).error();
    if (!*text) continue;
    if (Status applied = apply_generation_config(**text, vocabulary); !applied)
      return in_file(checkpoint, name, std::move(applied).error());
    if (!vocabulary.end_of_generation_ids.empty()) break;
  }
  return {};
}

Result<VocabularyData> folder_vocabulary(const Checkpoint& checkpoint) {
  auto json = optional_file(checkpoint, "tokenizer.json");
  if (!json) return std::move(json).error();
  if (*json) {
    auto vocabulary = vocabulary_from_tokenizer_json(**json);
    if (!vocabulary) return in_file(checkpoint, "tokenizer.json", std::move(vocabulary).error());
    return vocabulary;
  }
  auto model = optional_file(checkpoint, "tokenizer.model");
  if (!model) return std::move(model).error();
  if (*model) {
    auto vocabulary = vocabulary_from_sentencepiece(**model);
    if (!vocabulary) return in_file(checkpoint, "tokenizer.model", std::move(vocabulary).error());
    return vocabulary;
  }
  return Error{
      ErrorCode::kNotFound,
      fmt::format("{}: no tokenizer: neither tokenizer.json nor tokenizer.model is there", checkpoint.path())};
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(std::string_view json, const std::string& path) {
  auto values = JsonValues::parse(json, path);
  if (!values) return std::move(values).error();
  GenerationDefaults d;
  read_number(*values, "temperature", d.temperature);
  read_number(*values, "top_p", d.top_p);
  read_number(*values, "top_k", d.top_k);
  read_number(*values, "min_p", d.min_p);
  read_number(*values, "repetition_penalty", d.repetition_penalty);
  return d;
}

Result<ModelSettings> read_settings(const Checkpoint& checkpoint, const std::string& template_file) {
  ModelSettings settings;
  if (const GgufFile* gguf = checkpoint.gguf()) {
    settings.chat_template = std::string(gguf->string("tokenizer.chat_template").value_or(""));
    settings.template_origin = checkpoint.path() + ": tokenizer.chat_template";
  } else if (Status read = read_folder_settings(checkpoint, settings); !read) {
    return std::move(read).error();
  }
  if (!template_file.empty())
    if (Status read = read_template_file(template_file, settings); !read) return std::move(read).error();
  return settings;
}

Result<VocabularyData> read_vocabulary(const Checkpoint& checkpoint) {
  if (checkpoint.gguf()) return gguf_vocabulary(*checkpoint.gguf());
  auto vocabulary = folder_vocabulary(checkpoint);
  if (!vocabulary) return vocabulary;
  auto config = optional_file(checkpoint, "tokenizer_config.json");
  if (!config) return std::move(config).error();
  if (*config)
    if (Status applied = apply_tokenizer_config(**config, *vocabulary); !applied)
      return in_file(checkpoint, "tokenizer_config.json", std::move(applied).error());
  if (Status added = add_end_ids(checkpoint, *vocabulary); !added) return std::move(added).error();
  return vocabulary;
}

}  // namespace sluice
