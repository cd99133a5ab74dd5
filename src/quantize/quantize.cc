#include "quantize/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "model/formats/gguf.h"
#include "model/formats/json_text.h"
#include "quantize/overlap.h"

namespace sluice::quantize {
namespace {

constexpr int64_t kProductRows = 256;  // fewer are slow

// Where second moments are summed up: the CPU's products, or a card's on a backend of their own.
class Moments {
 public:
  static Result<Moments> make(const Job& job, Products& host, int64_t columns, int64_t tokens) {
    Moments out;
    out.products_ = &host;
    if (!job.calibration) return out;
    Result<std::unique_ptr<Backend>> made = job.make_backend();
    if (!made) return std::move(made).error();
    const DeviceInfo device = (*made)->info();
    if (!device.is_card()) return out;
    out.card_ = device.name;
    out.backend_ = std::move(*made);
    Result<Products> own = Products::make(*out.backend_, columns, tokens);
    if (!own) return std::move(own).error();
    out.own_ = std::make_unique<Products>(std::move(*own));
    out.products_ = out.own_.get();
    return out;
  }
  Products& products() { return *products_; }
  const std::string& card() const { return card_; }  // its name; empty: the CPU

 private:
  std::string card_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Products> own_;
  Products* products_ = nullptr;
};

size_t longest_sample(const Job& job) {
  size_t longest = 1;
  if (job.calibration)
    for (const auto& ids : job.calibration->samples) longest = std::max(longest, ids.size());
  return (longest + 15) / 16 * 16;
}

// The samples' residuals on their way through the layers.
class Flow {
 public:
  static Result<Flow> make(const Job& job) {
    Flow flow;
    flow.path_ = job.checkpoint.path();
    flow.runner_ = std::make_unique<LayerRunner>(job.checkpoint, job.make_backend, int(longest_sample(job)));
    if (job.calibration)
      for (const auto& ids : job.calibration->samples) {
        const Matrix& rows = flow.residuals_.emplace_back(flow.runner_->embed(ids));
        for (size_t i = 0; i < ids.size(); i++)
          if (Status finite = check_finite(job.checkpoint, "token_embd.weight", ids[i], rows.row(int64_t(i)));
              !finite)
            return std::move(finite).error();
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
      if (first_not_finite(copy.values))
        return Error{
            ErrorCode::kCorrupt,
            fmt::format("{}: layer {} computes NaN or infinite numbers; the model is damaged", path_, layer)};
      if (!statistics || keeps_) residuals_[i] = std::move(copy);
      progress(double(i + 1) / double(residuals_.size()));
    }
    return {};
  }
  // The pass that fills statistics moves the residuals on too: the next layer is to see what this one gives as
  // it was.
  void keep_first_pass(bool keeps) { keeps_ = keeps; }

 private:
  std::string path_;
  std::unique_ptr<LayerRunner> runner_;
  std::vector<Matrix> residuals_;
  bool keeps_ = false;
};

using Facts = std::vector<std::pair<std::string, std::string>>;  // a key, a JSON value

std::string json_object(const Facts& facts) {
  std::string out;
  for (const auto& [key, value] : facts)
    out += fmt::format("{}\"{}\": {}", out.empty() ? "" : ", ", key, value);
  return "{" + out + "}";
}

Facts facts_of(const Settings& s, Layout layout, const Grid& grid) {
  Facts out = {{"method", json_text(method_name(s.method))},
               {"layout", json_text(layout_name(layout))},
               {"bits", fmt::to_string(s.bits)},
               {"targets", s.all_targets ? "\"all\"" : "\"mlp\""}};
  if (s.method == Method::fp8) {
    out.emplace_back("granularity", s.block ? fmt::format("\"block {0}x{0}\"", s.block) : "\"channel\"");
  } else {
    out.emplace_back("granularity", grid.group ? fmt::format("\"group {}\"", grid.group) : "\"channel\"");
    out.emplace_back("symmetric", fmt::to_string(grid.symmetric));
  }
  if (s.method == Method::awq) out.emplace_back("clip", fmt::to_string(s.clip));
  if (s.method == Method::int8) out.emplace_back("smoothing", fmt::to_string(s.smoothing));
  if (s.compensated) out.emplace_back("compensated", "true");
  if (s.compensated || s.method == Method::gptq) out.emplace_back("damping", fmt::to_string(s.damping));
  return out;
}

Facts facts_of(const Calibration& c, const Observer& observer) {
  return {{"data", json_text(c.data_hash)},
          {"samples", fmt::to_string(c.samples.size())},
          {"sample_tokens", fmt::to_string(c.sample_tokens)},
          {"seed", fmt::to_string(c.seed)},
          {"tokens", fmt::to_string(c.tokens)},
          {"strata", json_text(c.strata)},
          {"observer", json_text(observer.name())},
          {"observed", json_text(observer.unit())}};
}

// The files that a model is read from, with sizes and times: another model may come to lie under the same path.
std::string files_of(const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  std::error_code e;
  std::vector<fs::path> files;
  if (fs::is_directory(checkpoint.path(), e)) {
    for (fs::directory_iterator at(checkpoint.path(), e), end; !e && at != end; at.increment(e))
      if (at->path().extension() == ".safetensors" || at->path().extension() == ".json")
        files.push_back(at->path());
  } else if (fs::exists(checkpoint.path(), e)) {
    files.push_back(checkpoint.path());
  }
  std::sort(files.begin(), files.end());
  std::string out;
  for (const fs::path& file : files)
    out += fmt::format("file {}: {} bytes of {}\n", file.filename().string(), fs::file_size(file, e),
                       fs::last_write_time(file, e).time_since_epoch().count());
  return out;
}

// All that the result depends on, a line each. `card`: its name, where one computes.
std::string identity(const Job& job, const std::string& card) {
  std::error_code e;
  const auto path = std::filesystem::canonical(job.checkpoint.path(), e);
  std::string out =
      fmt::format("model: {}\n{}", e ? job.checkpoint.path() : path.string(), files_of(job.checkpoint));
  for (const auto& [key, value] : facts_of(job.plan.settings, job.plan.layout, job.plan.grid))
    out += fmt::format("{}: {}\n", key, value);
  if (job.calibration)
    for (const auto& [key, value] : facts_of(*job.calibration, job.plan.settings.observer))
      out += fmt::format("calibration {}: {}\n", key, value);
  if (!card.empty()) out += fmt::format("computed by: {}\n", card);
  return out;
}

}  // namespace

std::string metadata(const Job& job) {
  Facts facts = facts_of(job.plan.settings, job.plan.layout, job.plan.grid);
  if (job.calibration)
    facts.emplace_back("calibration", json_object(facts_of(*job.calibration, job.plan.settings.observer)));
  return json_object(facts);
}

std::vector<uint64_t> calibration_passages(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf())
    return parse_passages(gguf->string(kWindowsGgufKey).value_or(std::string_view()));
  const Result<std::string> text = checkpoint.side_file(kWindowsFile);
  return text ? parse_passages(*text) : std::vector<uint64_t>();
}

Status quantize_model(const Job& job) {
  CHECK(job.plan.calibrated() == (job.calibration != nullptr));
  const ModelSpec& spec = job.checkpoint.spec();
  const int layers = spec.layers, widest = std::max({spec.hidden, spec.heads * spec.head_dim, spec.ffn});
  const size_t longest = longest_sample(job);
  Result<Products> products = Products::make(job.host, kProductRows, std::max(widest, int(longest)));
  if (!products) return std::move(products).error();
  Result<Moments> moments = Moments::make(job, *products, widest, int64_t(longest));
  if (!moments) return std::move(moments).error();
  Result<std::unique_ptr<Output>> output =
      Output::open(job.checkpoint, job.plan, job.out, identity(job, moments->card()));
  if (!output) return std::move(output).error();
  Result<Flow> flow = Flow::make(job);
  if (!flow) return std::move(flow).error();
  std::vector<Matrix>& residuals = flow->residuals();
  // Without samples a layer stands for itself; with them it needs what the layers before made of the samples.
  const int first =
      job.calibration ? (*output)->load_residuals(residuals).value_or(0) : (*output)->layers_done();
  // As published: GPTQ shows a layer what the quantized layers before give, AWQ and SmoothQuant what the model
  // gave.
  const bool quantized_inputs = job.plan.settings.method == Method::gptq;
  flow->keep_first_pass(!quantized_inputs);
  if (first > 0 && job.resumes) job.resumes(first);
  for (int layer = first; layer < layers; layer++) {
    const auto progress = [&](double part) {
      if (job.progress) job.progress((double(layer) + part) / double(layers));
    };
    progress(0);
    LayerStatistics statistics = statistics_for(job.plan, spec);
    if (job.calibration)
      if (Status s =
              flow->pass(layer, {}, &statistics, moments->products(), [&](double p) { progress(0.5 * p); });
          !s)
        return s;
    Result<QuantizedLayer> made =
        quantize_layer(job.checkpoint, layer, job.plan, statistics, {*products, job.threads});
    if (!made) return std::move(made).error();
    progress(0.8);
    if (quantized_inputs)
      if (Status s = flow->pass(layer, dequantized(*made), nullptr, moments->products(),
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
