#include "engine/model_text.h"

#include <fmt/format.h>

#include "base/log.h"
#include "engine/model_settings.h"

namespace sluice {
namespace {

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const Checkpoint& checkpoint) {
  auto vocabulary = read_vocabulary(checkpoint);
  if (!vocabulary) return std::move(vocabulary).error();
  auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) {
    Error error = std::move(tokenizer).error();
    error.message = fmt::format("{}: tokenizer: {}", checkpoint.path(), error.message);
    return error;
  }
  const int rows = checkpoint.spec().vocab;
  if ((*tokenizer)->size() > rows) {
    LOG(warn, "{}: the tokenizer has {} tokens, the model {}: text that needs the others cannot be processed",
        checkpoint.path(), (*tokenizer)->size(), rows);
  }
  return tokenizer;
}

Result<std::optional<ChatTemplate>> make_template(const ModelSettings& settings, const Tokenizer& t) {
  if (settings.chat_template.empty()) return std::optional<ChatTemplate>();
  const auto text = [&](int32_t id) {
    return id >= 0 ? std::string(t.piece(id, ControlText::kShow)) : std::string();
  };
  auto made =
      ChatTemplate::create(settings.chat_template, t.adds_bos() ? "" : text(t.bos_id()), text(t.eos_id()));
  if (!made) {
    Error error = std::move(made).error();
    error.message =
        fmt::format("{}: {} (--chat-template FILE overrides it)", settings.template_origin, error.message);
    return error;
  }
  return std::optional<ChatTemplate>(std::move(*made));
}

}  // namespace

Result<ModelText> load_text(const Checkpoint& checkpoint, const std::string& template_file) {
  auto settings = read_settings(checkpoint, template_file);
  if (!settings) return std::move(settings).error();
  auto tokenizer = make_tokenizer(checkpoint);
  if (!tokenizer) return std::move(tokenizer).error();
  auto chat_template = make_template(*settings, **tokenizer);
  if (!chat_template) return std::move(chat_template).error();
  return ModelText{std::move(*tokenizer), std::move(*chat_template), settings->defaults};
}

}  // namespace sluice
