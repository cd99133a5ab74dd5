#include "engine/model_settings.h"

#include <fmt/format.h>

#include <algorithm>

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

// The text room's readers name their file; that name is not said twice.
Error in_file(const Checkpoint& checkpoint, const char* name, Error error) {
  const std::string named = fmt::format("{}: ", name);
  if (error.message.starts_with(named)) error.message.erase(0, named.size());
  error.message = fmt::format("{}/{}: {}", checkpoint.path(), name, error.message);
  return error;
}

struct Bounds {
  double low, high;
  const char* words;
};

// Null is as good as absent; anything else must be a number that sampling can work with.
template <typename T>
Status read_number(const KeyValues& from, const std::string& path, std::string_view key, const Bounds& bounds,
                   std::optional<T>& to) {
  if (!from.has(key)) return {};
  const auto value = from.number(key);
  const bool good = value && *value >= bounds.low && *value <= bounds.high &&
                    double(T(*value)) - *value < 1e-3 && *value - double(T(*value)) < 1e-3;
  if (!good)
    return Error{ErrorCode::kCorrupt, fmt::format("{}: key '{}': must be {}, or null; correct it or remove it",
                                                  path, key, bounds.words)};
  to = T(*value);
  return {};
}

Status read_template_file(const std::string& path, ModelSettings& settings) {
  auto file = MappedFile::open(path);
  if (!file) return std::move(file).error();
  const auto bytes = file->bytes();
  if (bytes.size() > kMaxTemplateBytes)
    return Error{ErrorCode::kTooLarge, fmt::format("{}: too large for a chat template", path)};
  settings.chat_template.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (settings.chat_template.find_first_not_of(" \t\r\n") == std::string::npos)
    return Error{ErrorCode::kInvalidArgument, fmt::format("{}: the chat template is empty", path),
                 "chat_template"};
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

// Ids that end a text: generation_config.json's, or where there is none config.json's. Both must make sense.
Status add_end_ids(const Checkpoint& checkpoint, VocabularyData& vocabulary) {
  const int rows = checkpoint.spec().vocab;
  for (const char* name : {"generation_config.json", "config.json"}) {
    auto text = optional_file(checkpoint, name);
    if (!text) return std::move(text).error();
    if (!*text) continue;
    VocabularyData found;
    if (Status applied = apply_generation_config(**text, found); !applied)
      return in_file(checkpoint, name, std::move(applied).error());
    for (const int32_t id : found.end_of_generation_ids)
      if (id >= rows)
        return in_file(checkpoint, name,
                       {ErrorCode::kCorrupt,
                        fmt::format("key 'eos_token_id': {} is not one of the model's {} tokens", id, rows)});
    if (vocabulary.end_of_generation_ids.empty())
      vocabulary.end_of_generation_ids = std::move(found.end_of_generation_ids);
  }
  return {};
}

// Some models' tokenizers have a few added tokens beyond the embedding (Gemma 3's text models: the image token,
// which text never needs). Others beyond it, or a gap before them, mean files of two models.
Status check_size(const VocabularyData& v, const Checkpoint& checkpoint) {
  const size_t rows = size_t(checkpoint.spec().vocab);
  for (size_t id = rows; id < v.tokens.size(); ++id) {
    const TokenType type = v.types.empty() ? TokenType::kNormal : v.types[id];
    if (type == TokenType::kControl || type == TokenType::kUserDefined) continue;
    return Error{ErrorCode::kCorrupt,
                 fmt::format("the tokenizer has ids up to {}, but the model only {} tokens: they do not belong "
                             "together; use the tokenizer files that the model was published with",
                             v.tokens.size() - 1, rows)};
  }
  return {};
}

Result<VocabularyData> folder_vocabulary(const Checkpoint& checkpoint) {
  auto json = optional_file(checkpoint, "tokenizer.json");
  if (!json) return std::move(json).error();
  if (*json) {
    auto vocabulary = vocabulary_from_tokenizer_json(**json);
    if (!vocabulary) return in_file(checkpoint, "tokenizer.json", std::move(vocabulary).error());
    if (Status fits = check_size(*vocabulary, checkpoint); !fits)
      return in_file(checkpoint, "tokenizer.json", std::move(fits).error());
    return vocabulary;
  }
  auto model = optional_file(checkpoint, "tokenizer.model");
  if (!model) return std::move(model).error();
  if (*model) {
    auto vocabulary = vocabulary_from_sentencepiece(**model);
    if (!vocabulary) return in_file(checkpoint, "tokenizer.model", std::move(vocabulary).error());
    if (Status fits = check_size(*vocabulary, checkpoint); !fits)
      return in_file(checkpoint, "tokenizer.model", std::move(fits).error());
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
  const Bounds scale{0, 1e6, "a number of at least 0"}, positive{1e-6, 1, "a number above 0 and at most 1"},
      share{0, 1, "a number from 0 to 1"}, penalty{1e-6, 1e6, "a number above 0"},
      // -1 is how some files say "all".
      count{-1, 1e9, "a whole number of at least 0"};
  Status read = read_number(*values, path, "temperature", scale, d.temperature);
  if (read) read = read_number(*values, path, "top_p", positive, d.top_p);
  if (read) read = read_number(*values, path, "top_k", count, d.top_k);
  if (read) read = read_number(*values, path, "min_p", share, d.min_p);
  if (read) read = read_number(*values, path, "repetition_penalty", penalty, d.repetition_penalty);
  if (!read) return std::move(read).error();
  if (d.top_k) d.top_k = std::max(*d.top_k, 0);
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
  for (const int32_t id : {vocabulary->bos_id, vocabulary->eos_id})
    if (id >= checkpoint.spec().vocab)
      return in_file(
          checkpoint, "tokenizer_config.json",
          {ErrorCode::kCorrupt,
           fmt::format("the beginning or end token has the id {}, which is not one of the model's {} "
                       "tokens; name another one",
                       id, checkpoint.spec().vocab)});
  if (Status added = add_end_ids(checkpoint, *vocabulary); !added) return std::move(added).error();
  return vocabulary;
}

}  // namespace sluice
