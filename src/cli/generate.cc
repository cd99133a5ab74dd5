#include "cli/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <semaphore>

#include "cli/load_progress.h"
#include "text/detokenizer.h"

namespace sluice::cli {
namespace {

// What was asked for, else the model's own default, else greedy.
SamplingParams sampling_of(const GenerateOptions& o, const GenerationDefaults& defaults) {
  SamplingParams p;
  p.temperature = o.temperature >= 0 ? o.temperature : defaults.temperature.value_or(0.f);
  p.top_p = o.top_p >= 0 ? o.top_p : defaults.top_p.value_or(1.f);
  p.min_p = o.min_p >= 0 ? o.min_p : defaults.min_p.value_or(0.f);
  p.top_k = o.top_k >= 0 ? o.top_k : defaults.top_k.value_or(0);
  p.repetition_penalty = defaults.repetition_penalty.value_or(1.f);
  p.seed = o.seed >= 0 ? uint64_t(o.seed) : std::random_device()();
  return p;
}

}  // namespace

Result<std::unique_ptr<ServedModel>> load_with_progress(const Config& config) {
  LoadProgressLine progress;
  return load_model(config.model,
                    [&](const std::string& phase, double fraction) { progress.show(phase, fraction); });
}

Result<Generation> generate(ServedModel& model, std::vector<int32_t> prompt, const GenerateOptions& options,
                            const std::function<void(std::string_view)>& on_text,
                            const std::function<bool()>& stopped) {
  Generation out;
  out.prompt_tokens = int(prompt.size());
  Request request;
  request.id = "cli";
  request.sampling = sampling_of(options, model.defaults());
  request.max_tokens =
      std::min(options.max_tokens, std::max(1, model.engine().info().context - out.prompt_tokens));
  request.prompt = std::move(prompt);

  const auto arrived = std::make_shared<std::counting_semaphore<>>(0);
  const TimeNs start = now_ns();
  Result<std::shared_ptr<RequestStream>> stream =
      model.engine().submit(std::move(request), [arrived] { arrived->release(); });
  if (!stream) return std::move(stream).error();

  Detokenizer detokenizer(model.tokenizer());
  std::string text;
  const auto emit = [&] {
    out.text += text;
    if (!text.empty()) on_text(text);
    text.clear();
  };
  for (bool cancelled = false; out.finish == FinishReason::none;) {
    TokenEvent event;
    if (!(*stream)->pop(event)) {
      (void)arrived->try_acquire_for(std::chrono::milliseconds(50));
      if (!cancelled && stopped()) cancelled = true, (*stream)->cancel();
      continue;
    }
    out.finish = event.finish;
    if (event.id < 0) continue;
    if (out.generated_tokens++ == 0) out.first_token_s = seconds(now_ns() - start);
    out.broken = out.broken || event.logits == LogitsState::nan;
    detokenizer.push(event.id, text);
    emit();
  }
  detokenizer.finish(text);
  emit();
  out.total_s = seconds(now_ns() - start);
  return out;
}

Status check_whole(const Generation& g) {
  if (g.finish == FinishReason::failed)
    return Error{ErrorCode::kInternal, "the engine gave up on this request"};
  if (g.broken)
    return Error{
        ErrorCode::kCorrupt,
        "the model computes numbers that are none (NaN or infinite), so this answer means nothing: its "
        "weights are damaged or too large for their format"};
  return {};
}

std::string describe_speed(const Generation& g) {
  std::string line =
      fmt::format("{} prompt tokens in {:.2f} s ({:.1f} tok/s)", g.prompt_tokens, g.first_token_s,
                  g.first_token_s > 0 ? g.prompt_tokens / g.first_token_s : 0.0);
  const double decode_s = g.total_s - g.first_token_s;
  line += fmt::format(", {} generated", g.generated_tokens);
  if (g.generated_tokens > 1 && decode_s > 0)
    line += fmt::format(" in {:.2f} s ({:.1f} tok/s)", decode_s, (g.generated_tokens - 1) / decode_s);
  return line;
}

}  // namespace sluice::cli
