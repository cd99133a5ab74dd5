// `sluice quantize`: a smaller model of a model.
#include "quantize/quantize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "engine/make_engine.h"
#include "engine/model_settings.h"
#include "model/formats/gguf.h"
#include "quantize/overlap.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_writer.h"

namespace sluice::cli {
namespace {

// A bar with the time that is left, on a terminal; elsewhere a line for every tenth.
class Bar {
 public:
  void show(double done) {
    const TimeNs now = now_ns();
    const double past = double(now - start_) / 1e9, left = done > 0 ? past / done - past : 0;
    if (!tty_) {
      if (int(done * 10) <= tenths_) return;
      tenths_ = int(done * 10);
      fmt::print(stderr, "{:3.0f} % done, {} left\n", done * 100, span(left));
    } else if (done >= 1 || now - last_ > 200'000'000) {
      last_ = now;
      const auto filled = size_t(done * kWidth);
      fmt::print(stderr, "\r\033[K[{}{}] {:3.0f} %, {} left", std::string(filled, '#'),
                 std::string(kWidth - filled, ' '), done * 100, span(left));
    }
    std::fflush(stderr);
  }
  void clear() const {
    if (tty_) fmt::print(stderr, "\r\033[K");
  }

 private:
  static constexpr size_t kWidth = 40;
  static std::string span(double seconds) {
    const auto s = int64_t(seconds + 0.5);
    return s >= 3600 ? fmt::format("{} h {:02} min", s / 3600, s / 60 % 60)
                     : fmt::format("{}:{:02}", s / 60, s % 60);
  }
  const bool tty_ = isatty(STDERR_FILENO);
  const TimeNs start_ = now_ns();
  TimeNs last_ = 0;
  int tenths_ = 0;
};

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

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

Result<quantize::Settings> settings_of(const QuantizeOptions& options) {
  quantize::Settings s = options.settings;
  for (const auto m : {quantize::Method::rtn, quantize::Method::awq, quantize::Method::gptq,
                       quantize::Method::int8, quantize::Method::fp8})
    if (options.method == quantize::method_name(m)) s.method = m;
  s.all_targets = options.targets == "all";
  s.compensated = s.method == quantize::Method::fp8 && !options.calibration.empty();
  if (s.layout.empty() && options.out.ends_with(".gguf")) s.layout = "gguf";
  if ((s.layout == "gguf") != options.out.ends_with(".gguf"))
    return Error{ErrorCode::kInvalidArgument, "a GGUF file ends in .gguf, and a folder does not", "output"};
  Result<quantize::Observer> observer = quantize::parse_observer(options.observer);
  if (!observer) return observer.error();
  s.observer = *observer;
  return s;
}

Result<quantize::Calibration> calibrate(const QuantizeOptions& options, const Tokenizer& tokenizer) {
  auto file = MappedFile::open(options.calibration);
  if (!file) return std::move(file).error();
  const quantize::CalibrationWish wish{
      .samples = options.samples,
      .sample_tokens = options.sample_tokens,
      .seed = options.seed,
      .tokenize = [&](std::string_view text) { return tokenizer.encode(text, true, false); }};
  auto drawn = quantize::draw_samples(text_of(*file), options.calibration, wish);
  if (!drawn || options.eval_data.empty()) return drawn;
  auto judged = MappedFile::open(options.eval_data);
  if (!judged) return std::move(judged).error();
  if (Status plain = quantize::check_text(text_of(*judged), options.eval_data, "eval-data"); !plain)
    return std::move(plain).error();
  if (const auto passage = quantize::shared_passage(text_of(*judged), drawn->passages))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} shares a passage with {}, so figures from it would mean nothing: '{} …'",
                             options.calibration, options.eval_data, passage->substr(0, 60)),
                 "calibration"};
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

Status run(const Config& config, const QuantizeOptions& options) {
  auto settings = settings_of(options);
  if (!settings) return settings.error();
  auto checkpoint = open_checkpoint(config.model.path);
  if (!checkpoint) return std::move(checkpoint).error();
  auto plan = quantize::make_plan(**checkpoint, *settings);
  if (!plan) return plan.error();
  if (Status effects = check_effects(options, *plan); !effects) return effects;
  if (plan->calibrated() && options.calibration.empty())
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} needs a text to measure activations on", options.method), "calibration"};
  auto vocabulary = read_vocabulary(**checkpoint);
  std::optional<quantize::Calibration> calibration;
  quantize::Job job{.checkpoint = **checkpoint, .plan = *plan, .out = options.out};
  if (plan->calibrated()) {
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
  if ((*checkpoint)->gguf() && plan->layout != quantize::Layout::gguf) {
    auto json = vocabulary ? tokenizer_json_from(*vocabulary) : Result<std::string>(vocabulary.error());
    if (json) {
      job.tokenizer_json = std::move(*json);
      job.tokenizer_config = tokenizer_config_from(
          *vocabulary, (*checkpoint)->gguf()->string("tokenizer.chat_template").value_or(""));
    } else {
      fmt::print(stderr, "no tokenizer is written: {}\n", json.error().message);
    }
  }
  auto backend = make_backend("cpu", config.model.cpu);
  if (!backend) return std::move(backend).error();
  job.threads = std::max(1, (*backend)->info().threads);
  if (plan->grid.group && plan->grid.group != options.settings.group)
    fmt::print(stderr, "groups of {} columns\n", plan->grid.group);
  for (const std::string& kept : plan->kept)
    fmt::print(stderr, "{} stays as it is: 32 does not divide its columns, or 8 its rows\n", kept);
  Bar bar;
  job.progress = [&](double done) { bar.show(done); };
  Status done = quantize::quantize_model(job, **backend);
  bar.clear();
  if (done) {
    const double before = double(weight_bytes((*checkpoint)->path())),
                 after = double(weight_bytes(options.out));
    fmt::print(stderr, "{}: {:.1f} MB of weights, {:.0f} % of {}'s {:.1f} MB\n", options.out, after / 1e6,
               100 * after / std::max(before, 1.0), (*checkpoint)->path(), before / 1e6);
  }
  return done;
}

}  // namespace

int quantize_command(const Config& config, const QuantizeOptions& options) {
  Status done = run(config, options);
  if (done) return 0;
  const Error& error = done.error();
  if (error.field.empty()) return failure(error);
  return failure(fmt::format("--{}: {}", error.field, error.message));
}

}  // namespace sluice::cli
