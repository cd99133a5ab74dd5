#include "server/api.h"

#include <random>

#include "base/log.h"
#include "server/limits.h"

namespace sluice {

HttpHeaders headers_of(const GenerationOptions& options) {
  if (options.ignored.empty()) return {};
  return {{"X-Sluice-Ignored", fmt::format("{}", fmt::join(options.ignored, ", "))}};
}

RequestBounds bounds_of(const ApiCall& call) {
  RequestBounds bounds;
  bounds.vocab = call.model.engine().info().spec.vocab;
  bounds.max_n = call.config.max_n;
  bounds.max_prompts = call.config.max_prompts;
  bounds.max_completions = call.config.max_completions;
  return bounds;
}

namespace {

// One model is served, so "smollm2" says enough of "SmolLM2-135M-Instruct.Q4_1". Load generators send "m".
bool is_part(std::string_view part, std::string_view whole) {
  for (size_t at = 0; !part.empty() && at + part.size() <= whole.size(); ++at) {
    if (equal_ignoring_case(whole.substr(at, part.size()), part)) return true;
  }
  return false;
}

// `id`: in the API.
bool names(std::string_view name, const ServedModel& model, std::string_view id) {
  const std::string_view path = model.path();
  std::string_view base = path;
  while (base.ends_with('/')) base.remove_suffix(1);
  if (const size_t slash = base.rfind('/'); slash != std::string_view::npos) base.remove_prefix(slash + 1);
  return name == path || is_part(name, id) || is_part(name, model.name()) || is_part(name, base);
}

}  // namespace

bool names_model(std::string_view name, const ApiCall& call) {
  return names(name, call.model, call.model_name);
}

ApiFailure check_model(const GenerationOptions& options, const ApiCall& call) {
  if (!options.model || options.model->empty() || names_model(*options.model, call)) return std::nullopt;
  const bool others = call.other != nullptr && names(*options.model, *call.other, call.other_name);
  if (others && call.pool == Pool::canary) return std::nullopt;
  std::string shown = options.model->substr(0, 128);
  return ApiError{{ErrorCode::kNotFound,
                   "The model '" + shown + "' does not exist here; this server serves '" +
                       std::string(call.model_name) + "'.",
                   "model"},
                  std::string(others ? kCanaryNamed : "model_not_found")};
}

ApiFailure check_prompt(const std::vector<int32_t>& ids, const ApiCall& call, std::string_view field) {
  if (ids.empty())
    return ApiError{member_error("The prompt is empty: it must have at least one token.", std::string(field)),
                    ""};
  const EngineInfo& info = call.model.engine().info();
  if (int(ids.size()) < info.context) return std::nullopt;
  return ApiError{
      member_error(
          fmt::format("The prompt has {} tokens; {}, and at least one of them must be left for the answer.",
                      ids.size(), describe_context(info)),
          std::string(field)),
      "context_length_exceeded"};
}

ApiFailure check_text(size_t bytes, const ApiCall& call, std::string_view field) {
  const size_t longest = call.model.tokenizer().longest_piece();
  const EngineInfo& info = call.model.engine().info();
  if (longest == 0 || bytes / longest < size_t(info.context)) return std::nullopt;
  return ApiError{member_error(fmt::format("The prompt has more than {} tokens; {}.", bytes / longest,
                                           describe_context(info)),
                               std::string(field)),
                  "context_length_exceeded"};
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool add_special) {
  std::vector<int32_t> ids = tokenizer.encode(text, add_special, true);
  if (add_special && tokenizer.adds_bos() && ids.size() > 1 && ids[0] == tokenizer.bos_id() &&
      ids[1] == ids[0]) {
    ids.erase(ids.begin());
  }
  return ids;
}

ApiFailure encode_prompts(std::vector<PromptInput> inputs, const ApiCall& call, std::string_view field,
                          GenerationPlan& plan) {
  for (PromptInput& input : inputs) {
    Prompt prompt;
    if (const auto* text = std::get_if<std::string>(&input)) {
      if (ApiFailure failure = check_text(text->size(), call, field)) return failure;
      prompt.ids = encode_prompt(call.model.tokenizer(), *text, true);
    } else {
      prompt.ids = std::get<std::vector<int32_t>>(std::move(input));
    }
    if (ApiFailure failure = check_prompt(prompt.ids, call, field)) return failure;
    plan.prompts.push_back(std::move(prompt));
  }
  return std::nullopt;
}

GenerationPlan plan_of(const ApiCall& call, GenerationOptions options, std::string id) {
  GenerationPlan plan;
  plan.id = std::move(id);
  plan.request_id = call.request_id;
  plan.model = std::string(call.model_name);
  plan.created = call.created;
  plan.deadline = call.deadline;
  plan.lane = options.lane.value_or(call.lane);
  plan.tenant = call.tenant;
  plan.arrival = call.arrival;
  plan.route = call.route;
  plan.trace = call.trace;
  plan.log = call.log;
  plan.batched = call.config.pooled_io;
  plan.sampling = sampling_of(options, call.model.defaults(), call.model.engine().info().spec.vocab);
  static thread_local std::mt19937_64 random{std::random_device{}()};
  plan.sampling.seed = options.seed.value_or(random());
  plan.options = std::move(options);
  return plan;
}

}  // namespace sluice
