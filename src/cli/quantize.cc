// `sluice quantize`: a smaller model of a model.
#include "quantize/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "engine/make_engine.h"
#include "engine/model_settings.h"
#include "model/formats/gguf.h"
#include "quantize/overlap.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_writer.h"

namespace sluice::cli {
namespace {

// Of a GGUF file, or of a folder's *.safetensors.
uintmax_t weight_bytes(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code e;
  if (!fs::is_directory(model, e)) return fs::exists(model, e) ? fs::file_size(model, e) : 0;
  uintmax_t bytes = 0;
  for (fs::directory_iterator at(model, e), end; !e && at != end; at.increment(e))
    if (at->path().extension() == ".safetensors") bytes += at->file_size();
  return bytes;
}

Error wrong(const char* flag, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message), flag};
}

// Whether a GGUF file is to be written, as OUT's name says.
Result<bool> writes_gguf(const std::string& out) {
  const auto ends = [&](std::string_view name) {
    return name.size() >= 5 && std::equal(name.end() - 5, name.end(), ".gguf", [](char a, char b) {
             return (a >= 'A' && a <= 'Z' ? char(a - 'A' + 'a') : a) == b;
           });
  };
  std::string_view name = out;
  while (name.size() > 1 && name.ends_with('/')) name.remove_suffix(1);
  if (out.empty()) return wrong("output", "is empty; name a folder to make, or a file that ends in .gguf");
  if (ends(name) && !out.ends_with(".gguf"))
    return wrong("output",
                 fmt::format("{}: a GGUF file ends in .gguf (in small letters), and a folder does not", out));
  return ends(name);
}

Result<quantize::Settings> settings_of(const QuantizeOptions& options) {
  quantize::Settings s = options.settings;
  for (const auto m : {quantize::Method::rtn, quantize::Method::awq, quantize::Method::gptq,
                       quantize::Method::int8, quantize::Method::fp8})
    if (options.method == quantize::method_name(m)) s.method = m;
  s.all_targets = options.targets == "all";
  s.compensated = s.method == quantize::Method::fp8 && !options.calibration.empty();
  for (const auto& [flag, file] :
       {std::pair("calibration", &options.calibration), std::pair("eval-data", &options.eval_data)})
    if (file->empty() && options.given.contains(flag)) return wrong(flag, "is empty; name a file");
  const Result<bool> gguf = writes_gguf(options.out);
  if (!gguf) return gguf.error();
  if (s.layout.empty() && *gguf) s.layout = "gguf";
  if ((s.layout == "gguf") != *gguf)
    return wrong("output", fmt::format("{} with --layout {}: a GGUF file ends in .gguf, and a folder does not",
                                       options.out, s.layout));
  Result<quantize::Observer> observer = quantize::parse_observer(options.observer, options.observe_per);
  if (!observer) return observer.error();
  s.observer = *observer;
  return s;
}

// A text that a flag names, mapped.
Result<MappedFile> text_file(const std::string& path, const char* flag) {
  auto file = MappedFile::open(path);
  if (!file) return Error{file.error().code, file.error().message, flag};
  if (Status plain = quantize::check_text(file->text(), path, flag); !plain) return std::move(plain).error();
  return file;
}

Result<quantize::Calibration> calibrate(const QuantizeOptions& options, const Tokenizer& tokenizer) {
  auto file = text_file(options.calibration, "calibration");
  if (!file) return std::move(file).error();
  std::optional<MappedFile> judged;
  if (!options.eval_data.empty()) {
    auto opened = text_file(options.eval_data, "eval-data");
    if (!opened) return std::move(opened).error();
    judged = std::move(*opened);
  }
  const quantize::CalibrationWish wish{
      .samples = options.samples,
      .sample_tokens = options.sample_tokens,
      .seed = options.seed,
      .tokenize = [&](std::string_view text) { return tokenizer.encode(text, true, false); }};
  auto drawn = quantize::draw_samples(file->text(), options.calibration, wish);
  if (!drawn || !judged) return drawn;
  if (const auto passage = quantize::shared_passage(judged->text(), drawn->passages))
    return wrong("calibration",
                 fmt::format("{} shares a passage with {}, so figures from it would mean nothing: '{} …'",
                             options.calibration, options.eval_data, passage->substr(0, 60)));
  return drawn;
}

// A flag that would change nothing was meant for another method.
Status check_effects(const QuantizeOptions& options, const quantize::Plan& plan) {
  using quantize::Method;
  const Method method = plan.settings.method;
  const bool calibrated = plan.calibrated(), gguf = plan.layout == quantize::Layout::gguf;
  const std::pair<const char*, bool> flags[] = {
      {"group-size", method != Method::fp8 && method != Method::int8 && !gguf},
      {"calibration", calibrated},
      {"eval-data", calibrated},
      {"samples", calibrated},
      {"sample-tokens", calibrated},
      {"seed", calibrated},
      {"observer", method == Method::int8},
      {"observe-per", method == Method::int8},
      {"smoothing", method == Method::int8},
      {"damping", method == Method::gptq || plan.settings.compensated},
      {"clip", method == Method::awq}};
  for (const auto& [flag, works] : flags)
    if (!works && options.given.contains(flag))
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("has no effect on {} in layout {}", options.method, layout_name(plan.layout)),
                   flag};
  return {};
}

// Errors of kInvalidArgument are of flags that do not go together; others are the model's.
Result<quantize::Plan> plan_of(const QuantizeOptions& options, const quantize::Settings& settings,
                               const Checkpoint& checkpoint) {
  auto plan = quantize::make_plan(checkpoint, settings);
  if (!plan) return plan;
  if (Status effects = check_effects(options, *plan); !effects) return std::move(effects).error();
  if (plan->calibrated() && options.calibration.empty())
    return wrong("calibration",
                 fmt::format("{} needs a text to measure activations on; name a file", options.method));
  return plan;
}

// Of the result, besides weights; says on stderr where it will know no text.
void add_tokenizer(quantize::Job& job, const Result<VocabularyData>& vocabulary) {
  const GgufFile* gguf = job.checkpoint.gguf();
  if (job.plan.layout == quantize::Layout::gguf) return;
  auto json = vocabulary ? Result<std::string>("") : Result<std::string>(vocabulary.error());
  if (gguf && vocabulary) json = tokenizer_json_from(*vocabulary);
  if (!json) {
    fmt::print(stderr, "no tokenizer is written, so the result serves token ids alone: {}\n",
               json.error().message);
    return;
  }
  if (!gguf) return;  // its files are copied
  job.tokenizer_json = std::move(*json);
  job.tokenizer_config =
      tokenizer_config_from(*vocabulary, gguf->string("tokenizer.chat_template").value_or(""));
}

// The CPU unless a device is asked for: there, a card is not looked for.
quantize::BackendMaker layer_backends(const Config& config, const QuantizeOptions& options,
                                      const ModelSpec& spec) {
  if (!options.given.contains("device")) return [cpu = config.model.cpu] { return make_backend("cpu", cpu); };
  EngineConfig engine = config.model.engine;
  engine.gpu_fused_quantization = engine.gpu_bf16_copies = false;  // inputs are read back as they are
  return [=, device = config.model.device, cpu = config.model.cpu] {
    return backend_for(spec, engine, device, cpu);
  };
}

void print_outcome(const std::string& model, const std::string& out) {
  const double before = double(weight_bytes(model)), after = double(weight_bytes(out));
  fmt::print(stderr, "{}: {:.1f} MB of weights, {:.0f} % of {}'s {:.1f} MB\n", out, after / 1e6,
             100 * after / std::max(before, 1.0), model, before / 1e6);
}

Status run(const Config& config, const QuantizeOptions& options, const Checkpoint& checkpoint,
           const quantize::Plan& plan) {
  auto vocabulary = read_vocabulary(checkpoint);
  std::optional<quantize::Calibration> calibration;
  auto host = make_backend("cpu", config.model.cpu);
  if (!host) return std::move(host).error();
  quantize::Job job{.checkpoint = checkpoint,
                    .plan = plan,
                    .out = options.out,
                    .make_backend = layer_backends(config, options, checkpoint.spec()),
                    .host = **host,
                    .threads = std::max(1, (*host)->info().threads)};
  if (plan.calibrated()) {
    if (!vocabulary) return vocabulary.error();
    auto tokenizer = Tokenizer::create(*vocabulary);
    if (!tokenizer) return std::move(tokenizer).error();
    auto drawn = calibrate(options, **tokenizer);
    if (!drawn) return drawn.error();
    calibration = std::move(*drawn);
    job.calibration = &*calibration;
    fmt::print(stderr, "calibration: {} samples, {} tokens ({})\n", calibration->samples.size(),
               calibration->tokens, calibration->strata);
  }
  add_tokenizer(job, vocabulary);
  if (plan.grid.group && plan.grid.group != options.settings.group)
    fmt::print(stderr, "groups of {} columns\n", plan.grid.group);
  for (const std::string& kept : plan.kept)
    fmt::print(stderr, "{} stays as it is: 32 does not divide its columns, or 8 its rows\n", kept);
  fmt::print(stderr, "layers are kept in {}.partial: after an interrupt the same command goes on from there\n",
             options.out);
  ProgressBar bar;
  job.progress = [&](double done) { bar.show(done); };
  job.resumes = [&](int layer) {
    fmt::print(stderr, "an interrupted run goes on: {} of {} layers are there\n", layer,
               checkpoint.spec().layers);
  };
  Status done = quantize::quantize_model(job);
  bar.clear();
  if (done) print_outcome(checkpoint.path(), options.out);
  return done;
}

int refused(const Error& error) {
  if (error.field.empty()) return failure(error);
  return failure(fmt::format("--{}: {}", error.field, error.message));
}

int refused_use(const Error& error) {
  const int status = refused(error);
  return error.code == ErrorCode::kInvalidArgument ? kExitWrongUse : status;
}

}  // namespace

int quantize_command(const Config& config, const QuantizeOptions& options) {
  const auto settings = settings_of(options);
  if (!settings) return refused_use(settings.error());
  const auto checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return refused(checkpoint.error());
  const auto plan = plan_of(options, *settings, **checkpoint);
  if (!plan) return refused_use(plan.error());
  const Status done = run(config, options, **checkpoint, *plan);
  return done ? 0 : refused(done.error());
}

}  // namespace sluice::cli
