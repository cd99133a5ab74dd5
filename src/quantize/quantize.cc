#include "quantize/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/formats/gguf.h"
#include "model/formats/json_text.h"
#include "quantize/overlap.h"

namespace sluice::quantize {
namespace {

// The samples' residuals on their way through the layers.
class Flow {
 public:
  static Result<Flow> make(const Job& job, Backend& backend) {
    Flow flow;
    flow.path_ = job.checkpoint.path();
    size_t longest = 1;
    if (job.calibration)
      for (const auto& ids : job.calibration->samples) longest = std::max(longest, ids.size());
    // Products of the methods have as many rows as steps: few are slow.
    auto runner = LayerRunner::make(job.checkpoint, backend, int(std::max<size_t>(longest, 256)));
    if (!runner) return std::move(runner).error();
    flow.runner_ = std::move(*runner);
    if (job.calibration)
      for (const auto& ids : job.calibration->samples) {
        flow.residuals_.push_back(flow.runner_->embed(ids));
        if (!finite(flow.residuals_.back()))
          return Error{ErrorCode::kCorrupt, fmt::format("{}: tensor token_embd.weight holds NaN or infinite "
                                                        "numbers; the model is damaged",
                                                        job.checkpoint.path())};
      }
    return flow;
  }
  std::vector<Matrix>& residuals() { return residuals_; }

  // Every sample through a layer. With `statistics` they are filled, and the residuals stay as they were.
  Status pass(int layer, const Replacements& replaced, LayerStatistics* statistics, Products& products,
              const std::function<void(double)>& progress) {
    if (Status loaded = runner_->load(layer, replaced); !loaded) return loaded;
    for (size_t i = 0; i < residuals_.size(); i++) {
      Matrix copy = residuals_[i];
      runner_->run(copy, [&](Input input, const Tensor& x) {
        if (!statistics) return;
        if (const auto at = statistics->find(input); at != statistics->end()) at->second.add(x, products);
      });
      if (!finite(copy))
        return Error{ErrorCode::kCorrupt,
                     fmt::format("{}: layer {} computes NaN or infinite numbers; the model "
                                 "is damaged",
                                 path_, layer)};
      if (!statistics || keeps_) residuals_[i] = std::move(copy);
      progress(double(i + 1) / double(residuals_.size()));
    }
    return {};
  }
  // The pass that fills statistics moves the residuals on too: the next layer is to see what this one gives as
  // it was.
  void keep_first_pass(bool keeps) { keeps_ = keeps; }

 private:
  static bool finite(const Matrix& m) {
    return std::all_of(m.values.begin(), m.values.end(), [](float v) { return std::isfinite(v); });
  }

  std::string path_;
  std::unique_ptr<LayerRunner> runner_;
  std::vector<Matrix> residuals_;
  bool keeps_ = false;
};

// As far as the result depends on it.
std::string identity(const Job& job) {
  return fmt::format("{} {} {}\n", job.checkpoint.path(), job.checkpoint.spec().name, metadata(job));
}

}  // namespace

std::string metadata(const Job& job) {
  const Settings& s = job.plan.settings;
  const Grid& grid = job.plan.grid;
  std::string out =
      fmt::format(R"({{"method": "{}", "layout": "{}", "bits": {}, "targets": "{}")", method_name(s.method),
                  layout_name(job.plan.layout), s.bits, s.all_targets ? "all" : "mlp");
  if (s.method == Method::fp8)
    out += fmt::format(R"(, "granularity": "{}")", s.block ? fmt::format("block {0}x{0}", s.block) : "channel");
  else
    out += fmt::format(R"(, "granularity": "{}", "symmetric": {})",
                       grid.group ? fmt::format("group {}", grid.group) : "channel", grid.symmetric);
  if (s.method == Method::awq) out += fmt::format(R"(, "clip": {})", s.clip);
  if (s.method == Method::int8) out += fmt::format(R"(, "smoothing": {})", s.smoothing);
  if (s.compensated) out += R"(, "compensated": true)";
  if (s.method == Method::gptq) out += fmt::format(R"(, "damping": {})", s.damping);
  if (const Calibration* c = job.calibration)
    out += fmt::format(
        R"(, "calibration": {{"data": "{}", "samples": {}, "tokens": {}, "strata": {}, "observer": "{}", )"
        R"("observed": "channel"}})",
        c->data_hash, c->samples.size(), c->tokens, json_text(c->strata), s.observer.name());
  return out + "}";
}

std::vector<uint64_t> calibration_passages(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf())
    return parse_passages(gguf->string(kWindowsGgufKey).value_or(std::string_view()));
  const Result<std::string> text = checkpoint.side_file(kWindowsFile);
  return text ? parse_passages(*text) : std::vector<uint64_t>();
}

Status quantize_model(const Job& job, Backend& backend) {
  CHECK(job.plan.calibrated() == (job.calibration != nullptr));
  Result<std::unique_ptr<Output>> output = Output::open(job.checkpoint, job.plan, job.out, identity(job));
  if (!output) return std::move(output).error();
  const int layers = job.checkpoint.spec().layers;
  Result<Flow> flow = Flow::make(job, backend);
  if (!flow) return std::move(flow).error();
  std::vector<Matrix>& residuals = flow->residuals();
  // Without samples a layer stands for itself; with them it needs what the layers before made of the samples.
  const int first =
      job.calibration ? (*output)->load_residuals(residuals).value_or(0) : (*output)->layers_done();
  // As published: GPTQ shows a layer what the quantized layers before give, AWQ and SmoothQuant what the model
  // gave.
  const bool quantized_inputs = job.plan.settings.method == Method::gptq;
  flow->keep_first_pass(!quantized_inputs);
  Products products(backend, 256);
  for (int layer = first; layer < layers; layer++) {
    const auto progress = [&](double part) {
      if (job.progress) job.progress((double(layer - first) + part) / double(std::max(1, layers - first)));
    };
    LayerStatistics statistics = statistics_for(job.plan, job.checkpoint.spec());
    if (job.calibration)
      if (Status s = flow->pass(layer, {}, &statistics, products, [&](double p) { progress(0.5 * p); }); !s)
        return s;
    Result<QuantizedLayer> made =
        quantize_layer(job.checkpoint, layer, job.plan, statistics, {products, job.threads});
    if (!made) return std::move(made).error();
    progress(0.8);
    if (quantized_inputs)
      if (Status s = flow->pass(layer, dequantized(*made), nullptr, products,
                                [&](double p) { progress(0.8 + 0.2 * p); });
          !s)
        return s;
    if (Status s = (*output)->write_layer(layer, *made); !s) return s;
    if (job.calibration && layer + 1 < layers)
      if (Status s = (*output)->save_residuals(layer + 1, residuals); !s) return s;
    progress(1);
  }
  return (*output)->finish({.metadata = metadata(job),
                            .windows = job.calibration ? passages_text(job.calibration->passages) : "",
                            .tokenizer_json = job.tokenizer_json,
                            .tokenizer_config = job.tokenizer_config});
}

}  // namespace sluice::quantize
