// `sluice eval`: perplexity of a text, how far the distributions of its tokens are from those of a baseline,
// and how fast each model is: quantized models, or precisions of the KV cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/mapped_file.h"
#include "cli/bench_rig.h"
#include "cli/commands.h"
#include "cli/eval_report.h"
#include "cli/load_progress.h"
#include "engine/kv_evaluation.h"
#include "engine/make_engine.h"
#include "engine/model_text.h"
#include "model/checkpoint.h"
#include "model/formats/whole_file.h"
#include "quantize/calibration.h"
#include "quantize/overlap.h"
#include "quantize/quantize.h"

namespace sluice::cli {
namespace {

constexpr int kSpeedSteps = 16;

// A checkpoint with its weights on a backend.
struct LoadedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelSpec spec;
  Weights weights;
};

Result<LoadedModel> open_model(const std::string& path, const EngineConfig& engine) {
  auto checkpoint = open_checkpoint(path);
  if (!checkpoint) return std::move(checkpoint).error();
  LoadedModel model{std::move(*checkpoint), {}, {}};
  model.spec = with_window(model.checkpoint->spec(), engine.kv.sliding_window);
  return model;
}

Status load(LoadedModel& model, Backend& backend, LoadProgressLine& progress) {
  auto weights = load_weights(*model.checkpoint, model.spec, backend, [&](size_t done, size_t total) {
    progress.show("weights", total ? double(done) / double(total) : 1);
  });
  if (!weights) return std::move(weights).error();
  model.weights = std::move(*weights);
  return {};
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The ids of the text, which both models must agree on; a model that was calibrated on the text is refused.
struct EvaluatedText {
  std::vector<int32_t> ids;
  int32_t first_id = -1;
};
Result<EvaluatedText> read_text(const LoadedModel& model, std::string_view bytes, const EvalOptions& options) {
  const auto known = quantize::calibration_passages(*model.checkpoint);
  if (const auto passage = quantize::shared_passage(bytes, known))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} was calibrated on a part of {}, so figures would mean nothing: '{} …'",
                             model.checkpoint->path(), options.data, passage->substr(0, 60)),
                 "data"};
  auto text = load_text(*model.checkpoint, "");
  if (!text) return std::move(text).error();
  EvaluatedText out{text->tokenizer->encode(bytes, false, false)};
  if (options.max_tokens > 0) out.ids.resize(std::min(out.ids.size(), size_t(options.max_tokens)));
  const std::vector<int32_t> begin = text->tokenizer->encode("", true, false);
  if (!begin.empty()) out.first_id = begin.front();
  return out;
}

Result<std::vector<EvalSpeed>> measure_speed(const Config& config, const EvalOptions& options,
                                             LoadedModel& model) {
  std::vector<EvalSpeed> out;
  std::vector<int> batches = options.batch.empty() ? std::vector{1, 32, 128} : options.batch;
  std::erase(batches, 0);
  if (!options.compares() || batches.empty()) return out;
  auto backend = backend_for(model.spec, config.model.engine, config.model.device, config.model.cpu);
  if (!backend) return std::move(backend).error();
  LoadProgressLine progress;
  if (Status loaded = load(model, **backend, progress); !loaded) return std::move(loaded).error();
  {
    auto rig = BenchRig::make(
        model.spec, model.weights, **backend, config.model.engine,
        {*std::max_element(batches.begin(), batches.end()), kSpeedSteps + 2 * kStepsInFlight + 1});
    if (!rig) return std::move(rig).error();
    for (const int batch : batches) {
      progress.show(fmt::format("speed at batch {}", batch), 0);
      (*rig)->decode(batch, 0, 2 * kStepsInFlight);
      const double step = (*rig)->decode(batch, 0, kSpeedSteps).wall_s / kSpeedSteps;
      out.push_back({batch, step, double(model.weights.bytes_per_token()) / step});
    }
  }
  model.weights = {};  // before its backend
  return out;
}

// A backend is sized once, so each row gets one of its own. `baseline`: what the row is compared with, its
// cache in full.
Result<EvalRow> evaluate(const Config& config, const EvalOptions& options, const std::string& path,
                         const std::string& baseline, const std::string& precision) {
  EngineConfig engine = config.model.engine;
  engine.kv.precision = precision;
  auto model = open_model(path, engine), full = open_model(baseline, engine);
  if (!model) return std::move(model).error();
  if (!full) return std::move(full).error();
  auto file = MappedFile::open(options.data);
  if (!file) return std::move(file).error();
  if (Status plain = quantize::check_text(text_of(*file), options.data, "data"); !plain)
    return std::move(plain).error();
  auto text = read_text(*model, text_of(*file), options), full_text = read_text(*full, text_of(*file), options);
  if (!text) return std::move(text).error();
  if (!full_text) return std::move(full_text).error();
  if (text->ids != full_text->ids)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} and {} cut the text into different tokens", path, baseline), "baseline"};
  auto backend = backend_for(model->spec, engine, config.model.device, config.model.cpu);
  if (!backend) return std::move(backend).error();
  LoadProgressLine progress;
  if (Status loaded = load(*model, **backend, progress); !loaded) return std::move(loaded).error();
  const bool same = baseline == path;
  if (!same)
    if (Status loaded = load(*full, **backend, progress); !loaded) return std::move(loaded).error();
  const KvEvaluationWish wish{
      .kv = engine.kv,
      .block_tokens = engine.block_tokens ? engine.block_tokens : 64,
      .window_tokens = std::min({options.window_tokens, model->spec.context, full->spec.context}),
      .first_id = text->first_id,
      .progress = [&](double done) { progress.show("text", done); }};
  auto found = compare_models({same ? model->spec : full->spec, same ? model->weights : full->weights},
                              {model->spec, model->weights}, **backend, text->ids, wish);
  progress.clear();
  if (!found) return std::move(found).error();
  EvalRow row{path, precision, *found, model->weights.bytes()};
  model->weights = {}, full->weights = {};
  backend->reset();
  auto speed = measure_speed(config, options, *model);
  if (!speed) return std::move(speed).error();
  row.speed = std::move(*speed);
  return row;
}

// The models must open and the page must have a place before anything is computed.
Status check_ends(const std::vector<std::string>& models, const EvalOptions& options) {
  for (const std::string& model : models)
    if (auto opened = open_checkpoint(model); !opened) return std::move(opened).error();
  if (options.html.empty()) return {};
  std::string folder = std::filesystem::path(options.html).parent_path();
  if (folder.empty()) folder = ".";
  if (std::filesystem::is_directory(options.html) || ::access(folder.c_str(), W_OK) != 0)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: cannot be written; name a file in a folder that can", options.html), "html"};
  return {};
}

}  // namespace

int eval(const Config& config, const EvalOptions& options) {
  std::vector<std::string> precisions = options.precisions, models = {config.model.path};
  if (precisions.empty()) precisions.push_back(config.model.engine.kv.precision);
  models.insert(models.end(), options.models.begin(), options.models.end());
  std::string baseline = options.baseline;
  if (baseline.empty() && models.size() > 1) baseline = models.front();
  std::vector<std::string> all = models;
  if (!baseline.empty()) all.push_back(baseline);
  if (Status ready = check_ends(all, options); !ready) return failure(ready.error());
  std::vector<EvalRow> rows;
  std::optional<Error> broken;
  for (const std::string& model : models) {
    for (const std::string& precision : precisions) {
      auto row = evaluate(config, options, model, baseline.empty() ? model : baseline, precision);
      if (row)
        rows.push_back(std::move(*row));
      else if (!broken)
        broken = Error{row.error().code, fmt::format("{}: {}", model, row.error().message), row.error().field};
    }
  }
  if (!rows.empty()) {
    fmt::print("{}", options.json         ? evaluation_json(rows, baseline)
                     : options.compares() ? comparison_table(rows, baseline)
                                          : precision_table(rows));
    if (!options.html.empty())
      if (Status s = write_whole_file(options.html, evaluation_html(rows, baseline, options.data)); !s)
        return failure(s.error());
  }
  return broken ? failure(*broken) : 0;
}

}  // namespace sluice::cli
