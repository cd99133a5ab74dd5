#include "engine/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "engine/make_engine.h"
#include "engine/model_digest.h"
#include "engine/model_text.h"
#include "engine/null_engine.h"
#include "model/checkpoint.h"
#include "model/dummy_checkpoint.h"
#include "model/weight_bytes.h"
#include "model/weights.h"

namespace sluice {
namespace {

class ServedModelImpl final : public ServedModel {
 public:
  Engine& engine() override { return *engine_; }
  DeviceRates device_rates() const override { return rates_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate* chat_template() const override { return template_ ? &*template_ : nullptr; }
  GrammarCompiler& grammars() override { return *grammars_; }
  const GenerationDefaults& defaults() const override { return defaults_; }
  const std::string& name() const override { return name_; }
  const std::string& path() const override { return path_; }

  // In order of construction; the engine goes first, as it uses what stands above it.
  std::string path_, name_;
  GenerationDefaults defaults_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<Backend> backend_;
  DeviceRates rates_;
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

std::vector<int32_t> end_ids_of(const ServedModelImpl& model) {
  std::vector<int32_t> ids;
  for (int32_t id : model.tokenizer_->end_of_generation_ids())
    if (id >= 0 && id < model.spec_.vocab) ids.push_back(id);
  return ids;
}

// Where another model serves, what a start would try: to live with less memory than there is.
Status check_room(const Checkpoint& checkpoint, const Backend& backend, size_t promised_bytes) {
  const DeviceInfo device = backend.info();
  if (device.is_card()) return {};  // allocating on one fails by itself
  const size_t needed = kept_bytes(checkpoint, backend);
  const size_t free = device.memory_bytes - std::min(device.memory_bytes, promised_bytes);
  if (needed <= free) return {};
  return Error{ErrorCode::kResourceExhausted,
               fmt::format("the weights of {} take {:.2f} GiB beside what is served here, and {:.2f} are free, "
                           "without {:.2f} that its caches may still take (a lower engine.kv_bytes)",
                           checkpoint.path(), gib(needed), gib(free),
                           gib(std::min(device.memory_bytes, promised_bytes)))};
}

Result<std::unique_ptr<Engine>> computing_engine(ServedModelImpl& model, const Checkpoint& checkpoint,
                                                 const LoadOptions& options, const LoadListener& tell) {
  const EngineConfig& config = options.engine;
  if (options.beside)
    if (Status fits = check_room(checkpoint, *model.backend_, config.promised_bytes); !fits)
      return std::move(fits).error();
  tell("weights", 0);
  const auto progress = [&](size_t done, size_t total) {
    tell("weights", total ? double(done) / double(total) : 1);
  };
  auto weights = load_weights(checkpoint, model.spec_, *model.backend_, progress, config.fusion);
  if (!weights) return std::move(weights).error();
  model.weights_ = std::move(*weights);

  tell("kv", 0);
  EngineModel parts{model.spec_, model.weights_, *model.backend_, end_ids_of(model)};
  parts.on_warm_up = [&](double share) { tell("warm-up", share); };
  parts.beside = options.beside;
  parts.meters = options.meters;
  if (!config.kv.disk_path.empty()) parts.digest = model_digest(checkpoint.path());
  return make_engine(parts, config);
}

}  // namespace

Result<std::unique_ptr<ServedModel>> load_model(const LoadOptions& options, const LoadListener& listener) {
  const LoadListener tell = [&](const std::string& phase, double fraction) {
    if (listener) listener(phase, fraction);
  };
  auto model = std::make_unique<ServedModelImpl>();
  model->path_ = options.path;
  model->name_ = name_of(options.path);
  tell("read header", 0);
  auto checkpoint = open_checkpoint(options.path);
  if (!checkpoint) return std::move(checkpoint).error();
  model->spec_ = with_window((*checkpoint)->spec(), options.engine.kv.sliding_window);
  if (Status fits = check_context(options.engine, model->spec_, options.path); !fits)
    return std::move(fits).error();

  const bool null = model->spec_.architecture == kNullArchitecture;
  if (!null) {
    // What the device cannot run should not cost a load.
    auto backend = backend_for(model->spec_, options.engine, options.device, options.cpu);
    if (!backend) return std::move(backend).error();
    model->backend_ = std::move(*backend);
    if (model->backend_->info().is_card()) model->rates_ = model->backend_->measure_rates();
  }

  tell("tokenizer", 0);
  auto text = load_text(**checkpoint, options.chat_template_file);
  if (!text) return std::move(text).error();
  model->defaults_ = text->defaults;
  model->tokenizer_ = std::move(text->tokenizer);
  model->template_ = std::move(text->chat_template);

  auto engine = null ? make_null_engine(model->spec_, end_ids_of(*model), options.engine)
                     : computing_engine(*model, **checkpoint, options, tell);
  if (!engine) return std::move(engine).error();
  model->engine_ = std::move(*engine);
  model->grammars_ = std::make_unique<GrammarCompiler>(*model->tokenizer_, model->spec_.vocab,
                                                       end_ids_of(*model), GrammarLimits());
  return std::unique_ptr<ServedModel>(std::move(model));
}

}  // namespace sluice
