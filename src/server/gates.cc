#include "server/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
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

void add_rate_header(HttpExchange& exchange, const char* of, const RateReading& rate) {
  if (rate.limit <= 0) return;
  exchange.add_header(fmt::format("X-Ratelimit-Limit-{}", of), fmt::format("{}", int64_t(rate.limit)));
  exchange.add_header(fmt::format("X-Ratelimit-Remaining-{}", of), fmt::format("{}", int64_t(rate.remaining)));
  exchange.add_header(fmt::format("X-Ratelimit-Reset-{}", of), reset_text(rate.full_in));
}

Ask ask_of(const GenerationPlan& plan, int context) {
  Ask ask{plan.tenant, plan.lane};
  ask.waits_here = plan.pool == Pool::stable;
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

int whole_seconds(TimeNs wait) { return std::max(1, int((wait + 999'999'999) / 1'000'000'000)); }

const BreakerSettings& profile(const std::string& name) {
  return name == "off" ? kNoBreaker : name == "quick" ? kQuickBreaker : kPatientBreaker;
}

// Shortens the answer where the permit says so. True: it did.
bool cut(GenerationPlan& plan) {
  const int most = plan.permit.max_tokens();
  if (most <= 0 || plan.pooling != Pooling::none) return false;
  const int wanted = plan.options.max_tokens.value_or(plan.default_max_tokens);
  if (wanted >= 0 && wanted <= most) return false;
  plan.options.max_tokens = most;
  plan.options.min_tokens = std::min(plan.options.min_tokens, most);
  return true;
}

HttpResponse response_of(const Refusal& refusal) {
  HttpResponse response = error_response(429, refusal.message, {}, refusal.code);
  set_retry_after(response, refusal.retry_after_s);
  response.own_rate = refusal.own_rate;
  return response;
}

// FNV-1a (Fowler, Noll, Vo), mixed once more so that its low digits are even.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 1099511628211u;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ hash >> 33;
}

// Who goes the same way again: a session, a key; else nobody.
uint64_t sticky_of(const HttpRequest& request, uint32_t tenant, TimeNs now) {
  if (const auto session = request.header("x-session-id"); !session.empty()) return hash_of(session);
  return hash_of(tenant > 0 ? fmt::format("key {}", tenant) : fmt::format("{}", now));
}

Canary::Wish wish_of(const HttpRequest& request, const std::string& env) {
  const auto said = request.header("x-canary");
  if (equal_ignoring_case(said, "always")) return Canary::Wish::always;
  if (equal_ignoring_case(said, "never")) return Canary::Wish::never;
  if (const auto of = request.header("x-env"); !of.empty())
    return of == env ? Canary::Wish::canary : Canary::Wish::never;
  return Canary::Wish::by_weight;
}

}  // namespace

Status check_traffic(const TrafficSettings& settings) {
  const auto wrong = [](const char* key, std::string why) {
    return Error{ErrorCode::kInvalidArgument, std::move(why), std::string("traffic.canary.") + key};
  };
  double before = 0;
  for (const std::string& step : settings.canary.steps) {
    double percent = 0;
    const auto read = std::from_chars(step.data(), step.data() + step.size(), percent);
    const bool whole = read.ec == std::errc() && read.ptr == step.data() + step.size();
    if (!whole || !(percent > before) || percent > 100)
      return wrong("steps", "must be percents above 0 and up to 100, each above the one before");
    before = percent;
  }
  if (settings.canary.upstream.empty()) return {};
  if (settings.canary.is_here())
    return wrong("upstream", "is one canary, traffic.canary.model or .settings another; give one of them");
  if (Status status = check_upstream_url(settings.canary.upstream); !status.ok())
    return wrong("upstream", status.error().message);
  return {};
}

Gates::Gates(ApiKeys keys, const TrafficSettings& settings)
    : keys_(std::move(keys)),
      admission_(std::make_shared<Admission>(settings, keys_.size())),
      stable_health_(std::make_shared<PoolHealth>(Pool::stable, canary_)),
      canary_health_(std::make_shared<PoolHealth>(Pool::canary, canary_)) {
  CHECK(configure(settings).ok(), "check_traffic comes before");
}

Status Gates::configure(const TrafficSettings& settings) {
  if (Status status = check_traffic(settings); !status.ok()) return status;
  admission_->configure(settings);
  stable_health_->breaker.configure(profile(settings.breaker.model));
  canary_health_->breaker.configure(profile(settings.breaker.upstream));
  std::lock_guard lock(mutex_);
  if (settings.canary == canary_settings_) return {};
  if (settings.canary.upstream != canary_settings_.upstream) {
    std::erase_if(retired_, [](const auto& upstream) { return upstream->idle(); });
    if (upstream_ != nullptr) retired_.push_back(std::move(upstream_));
    if (!settings.canary.upstream.empty()) {
      auto made = Upstream::create(settings.canary.upstream);
      if (!made.ok()) return std::move(made).error();
      upstream_ = std::move(made).value();
    }
  }
  canary_settings_ = settings.canary;
  start_canary_over();
  return {};
}

void Gates::set_canary(bool present, bool times) {
  std::lock_guard lock(mutex_);
  canary_is_here_.store(present);
  compares_times_ = times;
  start_canary_over();
}

void Gates::start_canary_over() {
  const bool there = upstream_ != nullptr;
  canary_health_->start_over();
  has_canary_.store(there || canary_is_here_.load());
  canary_->configure(canary_settings_, has_canary_.load(), there || compares_times_);
}

void Gates::show() const {
  admission_->show();
  stable_health_->show();
  canary_health_->show();
}

TrafficState Gates::state() const {
  TrafficState state;
  state.limit = admission_->limit();
  state.waiting = admission_->waiting();
  state.stable_breaker = stable_health_->breaker.state();
  state.canary_breaker = canary_health_->breaker.state();
  state.has_canary = has_canary_.load();
  state.canary_rolled_back = canary_->rolled_back();
  state.canary_percent = canary_->percent();
  state.canary_verdict = canary_->verdict();
  return state;
}

void Gates::stop() {
  has_canary_.store(false);
  std::vector<std::shared_ptr<Upstream>> over;  // ended without the lock
  std::lock_guard lock(mutex_);
  over.swap(retired_);
  if (upstream_ != nullptr) over.push_back(std::move(upstream_));
}

uint32_t Gates::identify(const HttpRequest& request) const {
  return keys_.empty() ? 0 : uint32_t(keys_.find(request));
}

std::optional<HttpResponse> Gates::admit(GenerationPlan& plan, int context, HttpExchange& exchange) {
  const TimeNs now = now_ns();
  std::optional<Refusal> refused;
  if (plan.permit) {
    refused = plan.permit.take_place(now);
    if (refused) plan.permit.end();
  } else {
    const Ask ask = ask_of(plan, context);
    refused = admission_->admit(ask, now, plan.permit);
    add_rate_headers(ask, now, exchange);
  }
  if (refused) return response_of(*refused);
  if (cut(plan))
    exchange.add_header("X-Sluice-Degraded", fmt::format("max_tokens={}", *plan.options.max_tokens));
  return std::nullopt;
}

void Gates::add_rate_headers(const Ask& ask, TimeNs now, HttpExchange& exchange) const {
  add_rate_header(exchange, "Requests", admission_->requests(ask.tenant, ask.lane, now));
  add_rate_header(exchange, "Tokens", admission_->tokens(ask.tenant, ask.lane, now));
}

std::optional<HttpResponse> Gates::pass(GenerationPlan& plan) {
  if (plan.pooling != Pooling::none) return std::nullopt;
  const TimeNs now = now_ns();
  const auto pass = stable_health_->breaker.enter(now);
  if (pass == CircuitBreaker::Pass::refused) {
    plan.permit.end();
    HttpResponse response = error_response(
        503, "Too many requests failed here of late; it is tried again soon.", {}, "breaker_open");
    set_retry_after(response, whole_seconds(stable_health_->breaker.opens_in(now)));
    return response;
  }
  plan.passage = Passage(stable_health_, pass);
  return std::nullopt;
}

bool Gates::is_canarys(const HttpRequest& request, uint32_t tenant, const std::string& env) const {
  return canary_->choose(wish_of(request, env), sticky_of(request, tenant, now_ns())) == Pool::canary;
}

Passage Gates::pass_canary() {
  const auto pass = canary_health_->breaker.enter(now_ns());
  if (pass == CircuitBreaker::Pass::refused) return {};
  Passage passage(canary_health_, pass, canary_->enter());
  return passage.has_place() ? std::move(passage) : Passage();
}

Passage Gates::enter_canary(const HttpRequest& request, uint32_t tenant, bool wish_always) {
  if (!canary_is_here_.load(std::memory_order_relaxed)) return {};
  std::string env;
  {
    std::lock_guard lock(mutex_);
    env = canary_settings_.env;
  }
  return wish_always || is_canarys(request, tenant, env) ? pass_canary() : Passage();
}

HttpResponse Gates::refuse_named() const {
  const TimeNs wait = canary_health_->breaker.opens_in(now_ns());
  HttpResponse response =
      wait > 0 ? error_response(503, "The canary failed too often of late; it is tried again soon.", {},
                                "breaker_open")
               : error_response(429, "The canary has as many requests as it may.", {}, "overloaded");
  set_retry_after(response, whole_seconds(wait));
  return response;
}

bool Gates::send_to_canary(HttpRequest& request, uint32_t tenant, Lane lane,
                           const std::shared_ptr<HttpExchange>& exchange, ProxiedAnswer::FallBack fall_back) {
  if (!has_canary_.load(std::memory_order_relaxed)) return false;
  std::shared_ptr<Upstream> upstream;
  CanarySettings settings;
  {
    std::lock_guard lock(mutex_);
    upstream = upstream_;
    settings = canary_settings_;
  }
  if (upstream == nullptr || !is_canarys(request, tenant, settings.env)) return false;
  ProxiedAnswer::Start start{exchange, {}, pass_canary(), {}, std::move(fall_back)};
  if (!start.passage) return false;
  const Ask ask{tenant, lane, int(request.body.size() / kBytesPerToken), kExpectedAnswerTokens, false};
  const TimeNs now = now_ns();
  // Who has no room here gets the refusal from where its tokens are counted.
  if (admission_->admit(ask, now, start.permit)) return false;
  add_rate_headers(ask, now, *exchange);
  start.request = std::move(request);
  ProxiedAnswer::start(std::move(start), *upstream, settings.timeout_ms);
  return true;
}

}  // namespace sluice
