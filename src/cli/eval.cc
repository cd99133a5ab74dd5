// `sluice eval`: perplexity of a text, how far the distributions of its tokens are from those of a baseline,
// and how fast each model is: quantized models, or precisions of the KV cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <optional>

#include "base/mapped_file.h"
#include "cli/bench_rig.h"
#include "cli/commands.h"
#include "cli/eval_report.h"
#include "cli/load_progress.h"
#include "cli/progress_bar.h"
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

Error at_flag(const char* flag, const Error& error) {
  return {error.code, fmt::format("--{}: {}", flag, error.message)};
}

// Unless it is the text that is at fault.
Error named(const std::string& model, const Error& error) {
  if (error.field == "data" || error.message.starts_with(model)) return error;
  return {error.code, fmt::format("{}: {}", model, error.message), error.field};
}

// The text as a model's ids.
struct EvaluatedText {
  std::vector<int32_t> ids;
  int32_t first_id = -1;
};

// A checkpoint with its weights on a backend, which is given up after them.
struct LoadedModel {
  std::string path;
  std::unique_ptr<Checkpoint> checkpoint{};
  ModelSpec spec{};
  EvaluatedText text{};
  std::unique_ptr<Backend> backend{};
  Weights weights{};
};

Status open_model(LoadedModel& model, const EngineConfig& engine) {
  auto checkpoint = open_checkpoint(model.path);
  if (!checkpoint) return std::move(checkpoint).error();
  model.checkpoint = std::move(*checkpoint);
  model.spec = with_window(model.checkpoint->spec(), engine.kv.sliding_window);
  return {};
}

Status load(LoadedModel& model, const Config& config) {
  auto backend = backend_for(model.spec, config.model.engine, config.model.device, config.model.cpu);
  if (!backend) return std::move(backend).error();
  LoadProgressLine progress;
  auto weights = load_weights(*model.checkpoint, model.spec, **backend, [&](size_t done, size_t total) {
    progress.show(model.path, total ? double(done) / double(total) : 1);
  });
  if (!weights) return std::move(weights).error();
  model.backend = std::move(*backend);
  model.weights = std::move(*weights);
  return {};
}

// Error: the model was calibrated on a part of the text.
Result<EvaluatedText> read_text(const LoadedModel& model, std::string_view bytes, const EvalOptions& options) {
  const auto known = quantize::calibration_passages(*model.checkpoint);
  if (const auto passage = quantize::shared_passage(bytes, known))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} was calibrated on a part of {}, so figures would mean nothing: '{} …'",
                             model.path, options.data, passage->substr(0, 60)),
                 "data"};
  auto text = load_text(*model.checkpoint, "");
  if (!text) return std::move(text).error();
  EvaluatedText out{text->tokenizer->encode(bytes, false, false)};
  if (options.max_tokens > 0) out.ids.resize(std::min(out.ids.size(), size_t(options.max_tokens)));
  const std::vector<int32_t> begin = text->tokenizer->encode("", true, false);
  if (!begin.empty()) out.first_id = begin.front();
  return out;
}

// The models side by side, each in memory once; on a card once for each precision of its cache.
class Comparison {
 public:
  Comparison(const Config& config, const EvalOptions& options, std::string_view bytes)
      : config_(config), options_(options), bytes_(bytes) {}

  // Errors: what opening, reading the text and loading say.
  Status set_baseline(const std::string& path) {
    Result<LoadedModel*> model = loaded(path);
    if (!model) return named(path, model.error());
    full_ = *model;
    return {};
  }
  Status add(const std::string& path, const std::string& precision) {
    Result<LoadedModel*> model = loaded(path);
    if (!model) return named(path, model.error());
    if ((*model)->text.ids != full_->text.ids)
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} and {} cut the text into different tokens, so they cannot be compared", path,
                               full_->path),
                   "baseline"};
    KvSettings kv = config_.model.engine.kv;
    kv.precision = precision;
    wished_.push_back({(*model)->spec, (*model)->weights, *(*model)->backend, kv});
    rows_.push_back({path, precision, {}, (*model)->weights.bytes()});
    return {};
  }

  // What was found of each model that was added, in order.
  struct Found {
    std::vector<EvalRow> rows;
    std::optional<Error> broken;  // of the first that failed
  };
  Result<Found> run() {
    int window = std::min(options_.window_tokens, full_->spec.context);
    for (const EvaluatedModel& model : wished_) window = std::min(window, model.spec.context);
    const int block = config_.model.engine.block_tokens;
    ProgressBar bar;
    const KvEvaluationWish wish{.block_tokens = block ? block : 64,
                                .window_tokens = window,
                                .first_id = full_->text.first_id,
                                .progress = [&](double done) { bar.show(done); }};
    auto found = compare_models({full_->spec, full_->weights, *full_->backend}, wished_, full_->text.ids, wish);
    bar.clear();
    if (!found) return named(full_->path, found.error());
    Found out;
    for (size_t i = 0; i < rows_.size(); i++) {
      if ((*found)[i])
        rows_[i].found = *(*found)[i], out.rows.push_back(std::move(rows_[i]));
      else if (!out.broken)
        out.broken = named(rows_[i].model, (*found)[i].error());
    }
    return out;
  }

 private:
  Result<LoadedModel*> loaded(const std::string& path) {
    const auto known = std::find_if(models_.begin(), models_.end(), [&](const LoadedModel& m) {
      return m.path == path && !m.backend->info().is_card();
    });
    if (known != models_.end()) return &*known;
    LoadedModel model{path};
    if (Status opened = open_model(model, config_.model.engine); !opened) return std::move(opened).error();
    auto text = read_text(model, bytes_, options_);
    if (!text) return std::move(text).error();
    model.text = std::move(*text);
    if (Status read = load(model, config_); !read) return std::move(read).error();
    models_.push_back(std::move(model));
    return &models_.back();
  }

  const Config& config_;
  const EvalOptions& options_;
  const std::string_view bytes_;
  std::list<LoadedModel> models_;
  LoadedModel* full_ = nullptr;
  std::vector<EvaluatedModel> wished_;
  std::vector<EvalRow> rows_;  // beside wished_
};

// The model alone.
Result<std::vector<EvalSpeed>> measure_speed(const Config& config, const EvalOptions& options,
                                             const std::string& path) {
  std::vector<EvalSpeed> out;
  std::vector<int> batches = options.batch.empty() ? std::vector{1, 32, 128} : options.batch;
  std::erase(batches, 0);
  if (!options.compares() || batches.empty()) return out;
  LoadedModel model{path};
  if (Status opened = open_model(model, config.model.engine); !opened) return std::move(opened).error();
  if (Status read = load(model, config); !read) return std::move(read).error();
  LoadProgressLine progress;
  auto rig =
      BenchRig::make(model.spec, model.weights, *model.backend, config.model.engine,
                     {*std::max_element(batches.begin(), batches.end()), kSpeedSteps + 2 * kStepsInFlight + 1});
  if (!rig) return std::move(rig).error();
  for (const int batch : batches) {
    progress.show(fmt::format("speed of {} at batch {}", path, batch), 0);
    (*rig)->decode(batch, 0, 2 * kStepsInFlight);
    const double step = (*rig)->decode(batch, 0, kSpeedSteps).wall_s / kSpeedSteps;
    out.push_back({batch, step, double(model.weights.bytes_per_token()) / step});
  }
  return out;
}

// Adds speeds to rows that follow each other by model. Errors: of the first model whose speed could not be
// measured, which leaves the row without.
Status add_speeds(const Config& config, const EvalOptions& options, std::vector<EvalRow>& rows) {
  Status first;
  for (size_t i = 0; i < rows.size(); i++) {
    if (i > 0 && rows[i].model == rows[i - 1].model) {
      rows[i].speed = rows[i - 1].speed;  // of one token a sequence: its cache does not matter
      continue;
    }
    auto speed = measure_speed(config, options, rows[i].model);
    if (speed)
      rows[i].speed = std::move(*speed);
    else if (first)
      first = named(rows[i].model, speed.error());
  }
  return first;
}

// The models must open and the page must have a place before anything is computed.
Status check_ends(const std::vector<std::string>& models, const EvalOptions& options) {
  for (const std::string& model : models)
    if (auto opened = open_checkpoint(model); !opened) return std::move(opened).error();
  if (options.html.empty()) return {};
  const std::filesystem::path named = std::filesystem::path(options.html).parent_path(),
                              folder = named.empty() ? "." : named;
  if (std::filesystem::is_directory(options.html) || ::access(folder.c_str(), W_OK) != 0)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--html: {}: cannot be written; name a file in a folder that can", options.html)};
  return {};
}

struct Evaluation {
  std::vector<EvalRow> rows;
  std::optional<Error> broken;  // the first thing that failed; the rows of others are there
};

Result<Evaluation> evaluate(const Config& config, const EvalOptions& options,
                            const std::vector<std::string>& models, const std::string& baseline) {
  auto file = MappedFile::open(options.data);
  if (!file) return at_flag("data", file.error());
  if (Status plain = quantize::check_text(file->text(), options.data, "data"); !plain)
    return at_flag("data", plain.error());
  std::vector<std::string> precisions = options.precisions;
  if (precisions.empty()) precisions.push_back(config.model.engine.kv.precision);
  Evaluation out;
  const auto note = [&](const Status& status) {
    if (!status && !out.broken) out.broken = status.error();
  };
  {
    Comparison comparison(config, options, file->text());
    if (Status s = comparison.set_baseline(baseline); !s) return std::move(s).error();
    for (const std::string& model : models) {
      Status added;
      for (const std::string& precision : precisions)
        if (added) note(added = comparison.add(model, precision));
    }
    auto found = comparison.run();
    if (!found) return std::move(found).error();
    out.rows = std::move(found->rows);
    if (found->broken) note(*found->broken);
  }
  note(add_speeds(config, options, out.rows));
  return out;
}

int refused(const Error& error) {
  const bool flag = error.field == "data" || error.field == "baseline";
  return failure(flag ? at_flag(error.field.c_str(), error) : error);
}

// A cache that nothing of was converted costs nothing, which says nothing of its precision.
void warn_of_full_caches(const std::vector<EvalRow>& rows) {
  for (const EvalRow& row : rows)
    if (row.precision != "bf16" && row.found.mean_kl == 0)
      fmt::print(stderr,
                 "{}: no block was converted, so these figures are those of a cache in full (a context's first "
                 "and newest blocks stay so): give a larger --window-tokens and a longer text{}\n",
                 row.precision, row.precision == "tiered" ? ", or a lower kv.tier_full_tokens" : "");
}

}  // namespace

int eval(const Config& config, const EvalOptions& options) {
  std::vector<std::string> models = {config.model.path};
  models.insert(models.end(), options.models.begin(), options.models.end());
  const std::string baseline = options.baseline.empty() ? models.front() : options.baseline;
  std::vector<std::string> all = models;
  all.push_back(baseline);
  if (Status ready = check_ends(all, options); !ready) return failure(ready.error());
  auto done = evaluate(config, options, models, baseline);
  if (!done) return refused(done.error());
  if (!done->rows.empty()) {
    // What a model's own cache costs has no baseline of another name.
    const std::string shown = options.baseline.empty() && models.size() == 1 ? "" : baseline;
    fmt::print("{}", options.json         ? evaluation_json(done->rows, shown)
                     : options.compares() ? comparison_table(done->rows, shown)
                                          : precision_table(done->rows));
    if (!options.html.empty())
      if (Status s = write_whole_file(options.html, evaluation_html(done->rows, shown, options.data)); !s)
        return failure(at_flag("html", s.error()));
    warn_of_full_caches(done->rows);
  }
  return done->broken ? refused(*done->broken) : 0;
}

}  // namespace sluice::cli
