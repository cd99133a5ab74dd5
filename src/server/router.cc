#include "server/router.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/faults.h"
#include "base/log.h"
#include "base/meter.h"
#include "observe/process_meters.h"
#include "observe/prometheus.h"
#include "server/answer_json.h"
#include "server/grammar_members.h"
#include "server/limits.h"

namespace sluice {

std::span<const Router::Route> Router::routes() {
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions", "Chat, as OpenAI's API has it.", false, nullptr, nullptr, prepare_chat},
      {"POST", "/v1/completions", "Completion of text or token ids, as OpenAI's API has it.", false, nullptr,
       nullptr, prepare_completions},
      {"POST", "/v1/responses", "Responses, as OpenAI's API has them.", false, nullptr, nullptr,
       prepare_responses},
      {"GET", "/v1/responses/", "A response that was stored.", false, &Router::get_response, nullptr, nullptr},
      {"DELETE", "/v1/responses/", "Forgets a stored response.", false, &Router::delete_response, nullptr,
       nullptr},
      {"POST", "/v1/embeddings", "Vectors of texts, as OpenAI's API has them.", false, nullptr, nullptr,
       prepare_embeddings},
      {"POST", "/v1/messages", "Messages, as Anthropic's API has them.", false, nullptr, nullptr,
       prepare_messages},
      {"POST", "/v1/messages/count_tokens", "How many tokens such a request's input has.", false, nullptr,
       count_message_tokens, nullptr},
      {"GET", "/v1/models", "The model that is served.", false, &Router::get_models, nullptr, nullptr},
      {"GET", "/v1/models/", "One model by its id.", false, &Router::get_model, nullptr, nullptr},
      {"GET", "/v1/requests", "The last requests and where their time went: ?recent=N or ?slowest=N.", false,
       &Router::get_requests, nullptr, nullptr},
      {"GET", "/v1/requests/", "One of them: /v1/requests/ID/timeline; all together: /v1/requests/attribution.",
       false, &Router::get_requests, nullptr, nullptr},
      {"POST", "/tokenize", "Text to token ids: {content, add_special, parse_special, with_pieces}.", false,
       nullptr, tokenize, nullptr},
      {"POST", "/detokenize", "Token ids to text: {tokens}.", false, nullptr, detokenize, nullptr},
      {"POST", "/apply-template", "Messages to the prompt the model sees: {messages, add_generation_prompt}.",
       false, nullptr, apply_template, nullptr},
      {"GET", "/health", "200 while the process lives.", true, &Router::get_health, nullptr, nullptr},
      {"GET", "/live", "The same.", true, &Router::get_health, nullptr, nullptr},
      {"GET", "/ready", "200 while a completion would be answered; else 503 and why.", true, &Router::get_ready,
       nullptr, nullptr},
      {"GET", "/openapi.json", "What all these take and answer: OpenAPI 3.1.", true, &Router::get_openapi,
       nullptr, nullptr},
      {"GET", "/metrics", "Prometheus metrics.", true, &Router::get_metrics, nullptr, nullptr},
      {"GET", "/v1/live", "The server's numbers as server-sent events, one a second.", false, nullptr, nullptr,
       nullptr, true},
      {"GET", "/v1/diagnosis", "What costs throughput here, ranked, with evidence: ?window_s=N.", false,
       &Router::get_diagnosis, nullptr, nullptr},
      {"GET", "/", "The page: chat, and the live numbers.", true, &Router::get_root, nullptr, nullptr},
      {"GET", "/page/", "Its files.", true, &Router::get_page_file, nullptr, nullptr},
      {"GET", "/routes", "This list.", true, &Router::get_routes, nullptr, nullptr},
  };
  return kRoutes;
}

namespace {

Counter& requests_counter(std::string_view route) {
  return meter::counter("sluice_http_requests_total", "Requests by route.", prometheus_label("route", route));
}

Counter& answers_counter(int status) {
  static Counter* counters[] = {
      &meter::counter("sluice_http_answers_total", "Answers by status class; client_gone: it left before.",
                      "status=\"client_gone\""),
      &meter::counter("sluice_http_answers_total", "", "status=\"1xx\""),
      &meter::counter("sluice_http_answers_total", "", "status=\"2xx\""),
      &meter::counter("sluice_http_answers_total", "", "status=\"3xx\""),
      &meter::counter("sluice_http_answers_total", "", "status=\"4xx\""),
      &meter::counter("sluice_http_answers_total", "", "status=\"5xx\"")};
  return *counters[std::clamp(status / 100, 0, 5)];
}

bool matches(std::string_view path, std::string_view pattern) {
  if (path == pattern) return pattern.size() == 1 || !pattern.ends_with('/');
  return pattern.size() > 1 && pattern.ends_with('/') && path.starts_with(pattern) &&
         path.size() > pattern.size();
}

// All headers of a name as one, as the standard has it for tracestate; two traceparents make none that is
// valid.
std::string joined(const HttpRequest& request, std::string_view name) {
  std::string out;
  for (const auto& [key, value] : request.headers)
    if (equal_ignoring_case(key, name)) out += (out.empty() ? "" : ",") + value;
  return out;
}

}  // namespace

std::string clean_request_id(std::string_view header) {
  std::string out;
  for (const char c : header) {
    if (c <= 0x20 || c >= 0x7f) return {};
    if (out.size() == size_t(limits::kRequestIdChars)) break;
    out += c;
  }
  return out;
}

Router::Router(const ServerConfig& config, ApiKeys keys, std::unique_ptr<Tracer> tracer)
    : config_(config),
      gates_(std::move(keys), config.traffic),
      cors_(config.cors_origins),
      responses_(config.response_store_bytes),
      tracer_(std::move(tracer)),
      pool_(config.text_threads, limits::kTextQueue),
      grammar_pool_(limits::kGrammarThreads, limits::kGrammarQueue),
      started_(std::time(nullptr)) {
  log_->listen([tracer = tracer_](const auto& account) { tracer->finish(account); });
  // All series stand at zero from the first scrape on.
  for (const Route& route : routes()) route_requests_.push_back(&requests_counter(route.path));
  route_requests_.push_back(&requests_counter("other"));
  answers_counter(200);
  register_generation_meters();
  register_member_meters();
  update_process_meters();
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  Caller caller;
  caller.id = clean_request_id(request.header("x-request-id"));
  if (caller.id.empty()) caller.id = "req-" + random_id();
  if (request.path.starts_with("/v1/messages")) caller.style = ErrorStyle::anthropic;
  exchange->add_header("X-Request-Id", caller.id);
  // Where Anthropic's clients look for it.
  if (caller.style == ErrorStyle::anthropic) exchange->add_header("Request-Id", caller.id);
  for (const auto& [name, value] : cors_.headers(request)) exchange->add_header(name, value);
  try {
    if (faults::armed() && faults::met_at(Fault::alloc_failure, {1})) [[unlikely]]
      throw std::bad_alloc();
    route_request(request, exchange, caller);
  } catch (const std::exception& e) {
    const LogScope about(log_ids(caller.trace, caller.id));
    LOG(error, "request {}: {}", caller.id, e.what());
    respond(exchange, error_response(500, "Internal error."), caller);
  }
}

HttpResponse Router::protocol_error(int status, std::string_view message) {
  HttpResponse response = error_response(status, message);
  response.headers.emplace_back("X-Request-Id", "req-" + random_id());  // its own was not read
  return response;
}

void Router::answered(int status) { answers_counter(status).add(); }

// The engine hears of the requests of one turn together.
void Router::turn_ended() { models_.ring(); }

void Router::respond(const std::shared_ptr<HttpExchange>& exchange, HttpResponse response,
                     const Caller& caller) {
  if (caller.trace && response.status >= 400) {
    RequestAccount head;
    head.request_id = caller.id;
    head.route = caller.route;
    head.model = model_name();
    head.tenant = caller.tenant;
    head.trace = caller.trace;
    head.status = response.status;
    log_->refuse(refused_at(std::move(head), caller.began));
  }
  style_error(response, caller.style, caller.id);
  exchange->respond(std::move(response));
}

void Router::route_request(HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
                           Caller& caller) {
  const bool head = request.method == "HEAD";
  const std::string_view method = head ? std::string_view("GET") : std::string_view(request.method);
  const Route* found = nullptr;
  std::string allow;
  for (const Route& route : routes()) {
    if (!matches(request.path, route.path)) continue;
    if (route.method == method) found = &route;
    allow += std::string(allow.empty() ? "" : ", ") + std::string(route.method) +
             (route.method == "GET" ? ", HEAD" : "");
  }
  route_requests_[found ? size_t(found - routes().data()) : routes().size()]->add();
  if (found == nullptr) return answer_unrouted(request, allow, exchange, caller);
  if (found->prepare != nullptr) begin_trace(*found, request, *exchange, caller);
  if (ApiFailure failure = check_single_headers(request))
    return respond(exchange, error_response(*failure), caller);
  caller.tenant = gates_.identify(request);
  if (!found->open && !gates_.is_open() && caller.tenant == 0) {
    return respond(
        exchange,
        error_response(401, "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY."),
        caller);
  }
  if (found->page != nullptr) return respond(exchange, (this->*found->page)(request), caller);
  if (models_.get() == nullptr || draining_.load(std::memory_order_relaxed))
    return respond(exchange, not_ready(), caller);
  if (found->live) return live_.listen(exchange, head);
  if (found->prepare != nullptr) {
    const auto lane = lane_named(request.header("x-priority"));
    const auto fall_back = [this, found, exchange, caller](HttpRequest back, Permit permit) {
      answer_here(*found, back, exchange, caller, std::move(permit));
    };
    // The other server logs it under the same id.
    if (gates_.asks_elsewhere() && request.header("x-request-id") != caller.id) {
      std::erase_if(request.headers,
                    [](const auto& h) { return equal_ignoring_case(h.first, "x-request-id"); });
      request.headers.emplace_back("X-Request-Id", caller.id);
    }
    if ((may_leave(*found) &&
         gates_.send_to_canary(request, caller.tenant, lane.value_or(Lane::standard), exchange, fall_back)) ||
        answer_by_canary(*found, request, exchange, caller))
      return;
  }
  answer_here(*found, request, exchange, caller);
}

// For another server: what is answered and forgotten. Responses are stored where they were made, and embeddings
// of two models have nothing to do with each other.
bool Router::may_leave(const Route& route) {
  return route.prepare != prepare_responses && route.prepare != prepare_embeddings;
}

// The answer says which trace it belongs to, and which span of it this server is.
void Router::begin_trace(const Route& route, const HttpRequest& request, HttpExchange& exchange,
                         Caller& caller) {
  caller.trace = tracer_->begin(joined(request, "traceparent"), joined(request, "tracestate"));
  if (!caller.trace) return;
  caller.route = route.path;
  caller.began = request.began;
  exchange.add_header("Traceparent", traceparent_of(caller.trace));
  if (!caller.trace.state.empty()) exchange.add_header("Tracestate", caller.trace.state);
}

// Which of two counts differs between this server and a proxy before it.
ApiFailure Router::check_single_headers(const HttpRequest& request) {
  for (const std::string_view name :
       {"authorization", "x-api-key", "x-priority", "x-request-id", "x-request-timeout-ms"}) {
    const auto is_it = [&](const auto& header) { return equal_ignoring_case(header.first, name); };
    if (std::count_if(request.headers.begin(), request.headers.end(), is_it) > 1)
      return ApiError{{ErrorCode::kInvalidArgument, "is given more than once.", std::string(name)}, ""};
  }
  return std::nullopt;
}

// `allow`: the methods that the path takes; empty: there is no such path.
void Router::answer_unrouted(const HttpRequest& request, const std::string& allow,
                             const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  const std::string methods = allow.empty() ? "GET, HEAD, POST, OPTIONS" : allow + ", OPTIONS";
  HttpResponse response;
  if (request.method == "OPTIONS" && (!allow.empty() || request.path == "*")) {
    response.status = 204;
    response.content_type.clear();
    if (cors_.is_preflight(request)) response.headers = cors_.preflight(request, methods);
  } else if (allow.empty()) {
    return respond(exchange,
                   error_response(404, "There is no such route. GET /routes lists them.", {}, "unknown_url"),
                   caller);
  } else {
    response = error_response(405, "This route does not take that method.", {}, "method_not_allowed");
  }
  response.headers.emplace_back("Allow", methods);
  respond(exchange, std::move(response), caller);
}

HttpResponse Router::not_ready() const {
  if (draining_.load(std::memory_order_relaxed)) return error_response(503, "The server is shutting down.");
  std::lock_guard lock(loading_mutex_);
  return error_response(
      503, fmt::format("The model is still loading ({}, {:.0f} %).", loading_phase_, 100 * loading_fraction_),
      {}, "model_loading");
}

void Router::set_loading(const std::string& phase, double fraction) {
  std::lock_guard lock(loading_mutex_);
  loading_phase_ = phase;
  loading_fraction_ = std::clamp(fraction, 0.0, 1.0);
}

void Router::serve_model(std::shared_ptr<ServedModel> model, LiveSources sources) {
  live_.serve(model, name_of(model.get()), std::move(sources));
  models_.set(Pool::stable, std::move(model));
  tell_gates();
}

void Router::serve_canary(std::shared_ptr<ServedModel> model) {
  models_.set(Pool::canary, std::move(model));
  tell_gates();
}

// With another model in either pool the comparison starts over. How long answers take is compared where both
// compute on the same.
void Router::tell_gates() {
  const auto stable = models_.get(), canary = models_.get(Pool::canary);
  bool times = true;
  if (canary != nullptr) {
    const DeviceInfo &ours = stable->engine().info().device, &its = canary->engine().info().device;
    times = ours.name == its.name && ours.threads == its.threads;
    if (!times)
      LOG(info,
          "canary: errors and odd answers are compared, times are not: it has {} threads of {}, not {} of {}",
          its.threads, its.name, ours.threads, ours.name);
  }
  gates_.set_canary(canary != nullptr, times);
}

void Router::set_draining() {
  draining_.store(true);
  live_.stop();
}

std::string Router::name_of(const ServedModel* model) const {
  if (!config_.model_name.empty()) return config_.model_name;
  return model != nullptr ? model->name() : std::string();
}

// The same model with other settings goes by the same name.
std::string Router::canary_name(const ServedModel& canary, const ServedModel* stable) const {
  return stable != nullptr && stable->path() == canary.path() ? name_of(stable) : canary.name();
}

HttpResponse Router::get_routes(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = "<!doctype html><meta charset=\"utf-8\"><title>Sluice</title><h1>Sluice</h1><table>";
  for (const Route& route : routes()) {
    response.body += fmt::format("<tr><td><code>{} {}</code><td>{}", route.method, route.path, route.about);
  }
  response.body += "</table>\n";
  return response;
}

}  // namespace sluice
