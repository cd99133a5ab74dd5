// Everything that answering needs of one model: weights on a backend, engine, tokenizer, template, defaults.
// Made by `load_model`, in phases that a progress listener hears of.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace sluice {

struct LoadOptions {
  std::string path;                // .gguf or folder
  std::string chat_template_file;  // overrides the model's own; empty: none
  std::string device = "auto";     // auto | cpu | cuda[:N] | ref (float32, slow: the judge)
  CpuOptions cpu;
  EngineConfig engine;
  // Another model serves in this process meanwhile: what does not fit the memory that is free is refused, where
  // a start would go on and warn.
  bool beside = false;
  MeterPlace meters = {};
};

// Sampling defaults from the model's own generation_config.json, where it has one.
struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

// "read header", "tokenizer", "weights" (with a fraction), "kv", "warm-up" (with a fraction).
using LoadListener = std::function<void(const std::string& phase, double fraction)>;

class ServedModel {
 public:
  virtual ~ServedModel() = default;
  virtual Engine& engine() = 0;
  // What a card was measured to do before the weights came; zero on a CPU.
  virtual DeviceRates device_rates() const { return {}; }
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatTemplate* chat_template() const = 0;  // null: the model has none; chat requests say so
  virtual GrammarCompiler& grammars() = 0;
  virtual const GenerationDefaults& defaults() const = 0;
  virtual const std::string& name() const = 0;  // file or folder name without extension
  virtual const std::string& path() const = 0;
};

Result<std::unique_ptr<ServedModel>> load_model(const LoadOptions& options, const LoadListener& listener);

}  // namespace sluice
