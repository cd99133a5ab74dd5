#include "engine/served_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/log.h"
#include "engine/make_engine.h"
#include "engine/model_settings.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace sluice {
namespace {

class ServedModelImpl final : public ServedModel {
 public:
  Engine& engine() override { return *engine_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate* chat_template() const override { return template_ ? &*template_ : nullptr; }
  const GenerationDefaults& defaults() const override { return defaults_; }
  const std::string& name() const override { return name_; }
  const std::string& path() const override { return path_; }

  // In order of construction; the engine goes first, as it uses what stands above it.
  std::string path_, name_;
  GenerationDefaults defaults_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<Backend> backend_;
  ModelSpec spec_;
  Weights weights_;
  std::unique_ptr<Engine> engine_;
};

// "models/SmolLM2.Q4_1.gguf" is SmolLM2.Q4_1, "models/Llama-3.2-1B/" is Llama-3.2-1B: only .gguf is an
// extension.
std::string name_of(const std::string& path) {
  std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

Result<std::unique_ptr<Backend>> make_backend(const LoadOptions& options) {
  const std::string& device = options.device;
  if (device == "auto" || device == "cpu") return make_cpu_backend(options.cpu);
  if (device == "ref") return make_ref_backend();
  if (device.starts_with("cuda"))
    return Error{ErrorCode::kUnsupported, "this build has no CUDA device; use --device cpu", "device"};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("unknown device \"{}\"; it is auto, cpu or cuda[:N]", device), "device"};
}

Status make_tokenizer(const Checkpoint& checkpoint, ServedModelImpl& model) {
  auto vocabulary = read_vocabulary(checkpoint);
  if (!vocabulary) return std::move(vocabulary).error();
  auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) {
    Error error = std::move(tokenizer).error();
    error.message = fmt::format("{}: tokenizer: {}", checkpoint.path(), error.message);
    return error;
  }
  // Padding rows of the embedding are usual (vocab beyond the tokenizer's size); ids beyond the embedding are
  // not.
  if ((*tokenizer)->size() > checkpoint.spec().vocab) {
    LOG(warn, "{}: the tokenizer has {} tokens, the model {}: text that needs the others cannot be processed",
        checkpoint.path(), (*tokenizer)->size(), checkpoint.spec().vocab);
  }
  model.tokenizer_ = std::move(*tokenizer);
  return {};
}

Status make_template(const ModelSettings& settings, ServedModelImpl& model) {
  if (settings.chat_template.empty()) return {};
  const Tokenizer& t = *model.tokenizer_;
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
  model.template_.emplace(std::move(*made));
  return {};
}

std::vector<int32_t> end_ids_of(const ServedModelImpl& model) {
  std::vector<int32_t> ids;
  for (int32_t id : model.tokenizer_->end_of_generation_ids())
    if (id >= 0 && id < model.spec_.vocab) ids.push_back(id);
  return ids;
}

}  // namespace

Result<std::unique_ptr<ServedModel>> load_model(const LoadOptions& options, const LoadListener& listener) {
  const auto tell = [&](const char* phase, double fraction) {
    if (listener) listener(phase, fraction);
  };
  auto model = std::make_unique<ServedModelImpl>();
  model->path_ = options.path;
  model->name_ = name_of(options.path);
  auto backend = make_backend(options);  // first: a wrong device should not cost a load
  if (!backend) return std::move(backend).error();
  model->backend_ = std::move(*backend);

  tell("read header", 0);
  auto checkpoint = open_checkpoint(options.path);
  if (!checkpoint) return std::move(checkpoint).error();
  model->spec_ = (*checkpoint)->spec();

  tell("tokenizer", 0);
  auto settings = read_settings(**checkpoint, options.chat_template_file);
  if (!settings) return std::move(settings).error();
  model->defaults_ = settings->defaults;
  if (Status made = make_tokenizer(**checkpoint, *model); !made) return std::move(made).error();
  if (Status made = make_template(*settings, *model); !made) return std::move(made).error();

  tell("weights", 0);
  auto weights = load_weights(**checkpoint, model->spec_, *model->backend_, [&](size_t done, size_t total) {
    tell("weights", total ? double(done) / double(total) : 1);
  });
  if (!weights) return std::move(weights).error();
  model->weights_ = std::move(*weights);

  tell("kv", 0);
  auto engine = make_engine(
      {model->spec_, model->weights_, *model->backend_, end_ids_of(*model), [&] { tell("warm-up", 0); }},
      options.engine);
  if (!engine) return std::move(engine).error();
  model->engine_ = std::move(*engine);
  return std::unique_ptr<ServedModel>(std::move(model));
}

}  // namespace sluice
