#include "server/gates.h"

#include <fmt/format.h>

#include "server/http_error.h"

namespace sluice {

namespace {

// Expected of an answer until it has ended, as the scheduler expects it: most clients ask for far more than
// they get.
constexpr int kExpectedAnswerTokens = 256;

// "1m3.5s", as OpenAI writes times until a limit is whole again.
std::string reset_text(TimeNs wait) {
  const int64_t tenths = (wait + 99'999'999) / 100'000'000;
  const int64_t minutes = tenths / 600;
  std::string text = minutes > 0 ? fmt::format("{}m", minutes) : "";
  return text + fmt::format("{}.{}s", tenths % 600 / 10, tenths % 10);
}

void add_rate_headers(HttpExchange& exchange, const char* of, const RateReading& rate) {
  if (rate.limit <= 0) return;
  exchange.add_header(fmt::format("X-Ratelimit-Limit-{}", of), fmt::format("{}", int64_t(rate.limit)));
  exchange.add_header(fmt::format("X-Ratelimit-Remaining-{}", of), fmt::format("{}", int64_t(rate.remaining)));
  exchange.add_header(fmt::format("X-Ratelimit-Reset-{}", of), reset_text(rate.full_in));
}

Ask ask_of(const GenerationPlan& plan, int context) {
  Ask ask{plan.tenant, plan.lane, 0, 0};
  const int wanted = plan.options.max_tokens.value_or(plan.default_max_tokens);
  for (const Prompt& prompt : plan.prompts) {
    ask.prompt_tokens += int(prompt.ids.size());
    if (plan.pooling != Pooling::none) continue;
    const int room = std::max(0, context - int(prompt.ids.size()));
    const int most = wanted < 0 ? room : std::min(wanted, room);
    ask.answer_tokens += plan.options.n * std::min(most, kExpectedAnswerTokens);
  }
  return ask;
}

}  // namespace

Gates::Gates(ApiKeys keys, const TrafficSettings& settings)
    : keys_(std::move(keys)), admission_(std::make_shared<Admission>(settings, keys_.size())) {}

uint32_t Gates::identify(const HttpRequest& request) const {
  return keys_.empty() ? 0 : uint32_t(keys_.find(request));
}

std::optional<HttpResponse> Gates::admit(GenerationPlan& plan, int context, HttpExchange& exchange) {
  const Ask ask = ask_of(plan, context);
  const TimeNs now = now_ns();
  const auto refused = admission_->admit(ask, now, plan.permit);
  add_rate_headers(exchange, "Requests", admission_->requests(ask.tenant, ask.lane, now));
  add_rate_headers(exchange, "Tokens", admission_->tokens(ask.tenant, ask.lane, now));
  if (refused) {
    HttpResponse response = error_response(429, refused->message, {}, refused->code);
    set_retry_after(response, refused->retry_after_s);
    response.own_rate = refused->own_rate;
    return response;
  }
  if (const int most = plan.permit.max_tokens(); most > 0 && plan.pooling == Pooling::none) {
    const int wanted = plan.options.max_tokens.value_or(plan.default_max_tokens);
    if (wanted < 0 || wanted > most) {
      plan.options.max_tokens = most;
      plan.options.min_tokens = std::min(plan.options.min_tokens, most);
      exchange.add_header("X-Sluice-Degraded", fmt::format("max_tokens={}", most));
    }
  }
  return std::nullopt;
}

}  // namespace sluice
