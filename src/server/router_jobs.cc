// A request's way from its route to the engine: headers, body, grammar, gates; and who answers it, the stable
// pool or a canary of this process.
#include <charconv>
#include <ctime>

#include "base/log.h"
#include "server/grammar_members.h"
#include "server/limits.h"
#include "server/router.h"

namespace sluice {

// A request on its way through parsing, template and tokenizer; on one thread at a time.
struct Router::TextJob {
  const Route& route;
  HttpRequest request;
  std::shared_ptr<HttpExchange> exchange;
  std::shared_ptr<ServedModel> model;  // call's
  std::shared_ptr<ServedModel> other;  // call's
  ApiCall call;
  const Caller caller;
  bool named = false;  // the canary's: by its own name
  Passage passage{};   // of the canary; of the stable pool it comes later
  Permit permit{};     // of a request that a canary has given back
  bool told = false;   // the canary's way has put its headers on the exchange
  PreparedGeneration prepared{};
  ApiFailure failure{};
  HttpResponse response{};

  bool is_canarys() const { return call.pool == Pool::canary; }
  // With its body as it came.
  bool may_go_elsewhere() const { return is_canarys() ? !named : failure && failure->code == kCanaryNamed; }
};

std::shared_ptr<Router::TextJob> Router::job_of(const Route& route, HttpRequest& request,
                                                const std::shared_ptr<HttpExchange>& exchange,
                                                const Caller& caller, Pool pool) {
  const auto [stable, canary] = models_.both();
  const auto& model = pool == Pool::stable ? stable : canary;
  std::shared_ptr<ServedModel> other;  // whose name is told apart where text is generated
  if (route.prepare != nullptr) other = pool == Pool::stable ? canary : stable;
  if (model == nullptr) return nullptr;
  const auto name = [&, stable = stable.get()](const std::shared_ptr<ServedModel>& of, bool canary) {
    return of == nullptr ? std::string() : canary ? canary_name(*of, stable) : name_of(of.get());
  };
  ApiCall call{*model, config_, name(model, pool == Pool::canary), caller.id};
  call.created = std::time(nullptr);
  call.tenant = caller.tenant;
  call.arrival = {.first_byte = request.began, .last_byte = request.received};
  call.log = log_;
  call.route = caller.route;
  call.trace = caller.trace;
  call.responses = config_.response_store_bytes > 0 ? &responses_ : nullptr;
  call.pool = pool;
  call.other = other.get();
  call.other_name = name(other, pool == Pool::stable);
  return std::make_shared<TextJob>(
      TextJob{route, std::move(request), exchange, model, other, std::move(call), caller});
}

// By the model that serves.
void Router::answer_here(const Route& route, HttpRequest& request,
                         const std::shared_ptr<HttpExchange>& exchange, const Caller& caller, Permit permit) {
  const auto job = job_of(route, request, exchange, caller, Pool::stable);
  job->permit = std::move(permit);
  run_model_route(job);
}

// Embeddings of two models have nothing to do with each other: those are the stable pool's.
bool Router::answer_by_canary(const Route& route, HttpRequest& request,
                              const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  if (route.prepare == prepare_embeddings) return false;
  Passage passage = gates_.enter_canary(request, caller.tenant);
  if (!passage) return false;
  const auto canary = models_.get(Pool::canary);
  if (canary == nullptr || canary->engine().status().stuck) return false;
  const auto job = job_of(route, request, exchange, caller, Pool::canary);
  if (job == nullptr) return false;  // it has gone meanwhile
  job->passage = std::move(passage);
  run_model_route(job);
  return true;
}

// Who asks for the canary by its name gets it or nothing.
void Router::go_to_named_canary(const std::shared_ptr<TextJob>& job) {
  Passage passage = gates_.enter_canary(job->request, job->caller.tenant, true);
  if (!passage) return respond(job->exchange, gates_.refuse_named(), job->caller);
  const auto named = job_of(job->route, job->request, job->exchange, job->caller, Pool::canary);
  if (named == nullptr) {  // it has gone meanwhile
    job->failure->code = "model_not_found";
    return respond(job->exchange, error_response(*job->failure), job->caller);
  }
  if (named->model->engine().status().stuck)
    return respond(job->exchange, error_response(503, "A step of this model has been running for too long."),
                   job->caller);
  named->named = true;
  named->passage = std::move(passage);
  run_model_route(named);
}

// What the canary could not answer; the stable pool can, or says why not.
void Router::fall_back(const std::shared_ptr<TextJob>& job) {
  job->passage.abandon();
  const auto again = job_of(job->route, job->request, job->exchange, job->caller, Pool::stable);
  again->permit = std::move(job->permit);
  again->told = job->told;
  run_model_route(again);
}

// What headers say of a request beside its body: how long it may take, and its lane.
ApiFailure Router::read_headers(const HttpRequest& request, ApiCall& call) const {
  const auto wrong = [](std::string field, std::string message) {
    return ApiError{{ErrorCode::kInvalidArgument, std::move(message), std::move(field)}, ""};
  };
  int limit_ms = config_.request_timeout_ms;
  if (const std::string_view timeout = request.header("x-request-timeout-ms"); !timeout.empty()) {
    int asked_ms = 0;
    const auto parsed = std::from_chars(timeout.data(), timeout.data() + timeout.size(), asked_ms);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == timeout.data() + timeout.size();
    if (!whole || asked_ms < 1 || asked_ms > limits::kRequestTimeoutMaxMs) {
      return wrong("x-request-timeout-ms",
                   fmt::format("x-request-timeout-ms must be 1 to {}.", limits::kRequestTimeoutMaxMs));
    }
    limit_ms = limit_ms > 0 ? std::min(limit_ms, asked_ms) : asked_ms;
  }
  if (limit_ms > 0) call.deadline = request.began + TimeNs(limit_ms) * 1'000'000;
  if (const std::string_view priority = request.header("x-priority"); !priority.empty()) {
    const auto lane = lane_named(priority);
    if (!lane) return wrong("x-priority", fmt::format("x-priority must be one of {}.", kLaneNames));
    call.lane = *lane;
  }
  return std::nullopt;
}

void Router::run_model_route(const std::shared_ptr<TextJob>& job) {
  if (ApiFailure failure = read_headers(job->request, job->call))
    return respond(job->exchange, error_response(*failure), job->caller);
  const bool inline_work = job->request.body.size() <= limits::kInlineBodyBytes;
  if (inline_work) {
    run_job(job);
    finish_prepared(job);
    return;
  }
  const bool taken = pool_.submit([this, job] {
    if (job->exchange->gone()) return;
    run_job(job);
    job->exchange->post([this, job] { finish_prepared(job); });
  });
  if (!taken) respond(job->exchange, error_response(429, "Too many long requests are waiting."), job->caller);
}

// Any thread.
void Router::run_job(const std::shared_ptr<TextJob>& job) {
  try {
    job->call.arrival.prepared_from = now_ns();
    if (job->route.prepare != nullptr)
      job->failure = job->route.prepare(job->request.body, job->call, job->prepared);
    else
      job->response = job->route.text(job->request.body, job->call);
  } catch (const std::exception& e) {
    const LogScope about(log_ids(job->call.trace, job->call.request_id));
    LOG(error, "request {}: {}", job->call.request_id, e.what());
    job->failure = ApiError{{ErrorCode::kInternal, "Internal error.", ""}, ""};
  }
  if (!job->may_go_elsewhere()) std::string().swap(job->request.body);
}

// What the request's answer is held to, if it is compiled already. True: it has to be, which may take seconds.
bool Router::wants_compile(TextJob& job) const {
  GenerationPlan& plan = job.prepared.plan;
  if (job.failure || !plan.options.grammar) return false;
  if (Status status = check_grammar_members(plan.options); !status.ok()) {
    job.failure = api_error(status.error());
    return false;
  }
  plan.grammar = job.call.model.grammars().find(*plan.options.grammar);
  return plan.grammar == nullptr;
}

// Grammar pool.
void Router::compile_grammar(TextJob& job) {
  try {
    GenerationPlan& plan = job.prepared.plan;
    auto compiled = job.call.model.grammars().compile(*plan.options.grammar);
    if (compiled.ok()) {
      plan.grammar = *compiled;
    } else {
      // The client's doing, whichever limit it is: 400.
      job.failure =
          api_error({ErrorCode::kInvalidArgument, compiled.error().message, plan.options.grammar_field});
    }
  } catch (const std::exception& e) {
    const LogScope about(log_ids(job.call.trace, job.call.request_id));
    LOG(error, "request {}: {}", job.call.request_id, e.what());
    job.failure = ApiError{{ErrorCode::kInternal, "Internal error.", ""}, ""};
  }
}

// The connection's thread.
void Router::finish_prepared(const std::shared_ptr<TextJob>& job) {
  if (!wants_compile(*job)) return finish_job(job);
  const bool taken = grammar_pool_.submit([this, job] {
    if (job->exchange->gone()) return;
    compile_grammar(*job);
    job->exchange->post([this, job] { finish_job(job); });
  });
  if (!taken)
    respond(job->exchange, error_response(429, "Too many grammars are waiting to be compiled."), job->caller);
}

// The connection's thread.
void Router::finish_failed(const std::shared_ptr<TextJob>& job) {
  if (!job->may_go_elsewhere()) return respond(job->exchange, error_response(*job->failure), job->caller);
  if (job->is_canarys()) return fall_back(job);
  go_to_named_canary(job);
}

// What stands behind preparing, in order; the answer in its place, if it may not pass.
std::optional<HttpResponse> Router::pass_gates(const std::shared_ptr<TextJob>& job) {
  GenerationPlan& plan = job->prepared.plan;
  plan.permit = std::move(job->permit);
  plan.pool = job->call.pool;
  if (auto refused = gates_.admit(plan, job->model->engine().info().context, *job->exchange)) return refused;
  if (!job->is_canarys()) return gates_.pass(plan);
  plan.passage = std::move(job->passage);
  if (job->named) return std::nullopt;
  // Posted: the stable pool's engine hears of what comes in such turns (turn_ended).
  plan.fall_back = [this, job](Permit permit) {
    job->permit = std::move(permit);
    job->told = true;
    job->exchange->post([this, job] { fall_back(job); });
  };
  return std::nullopt;
}

// The connection's thread.
void Router::finish_job(const std::shared_ptr<TextJob>& job) {
  try {
    if (job->failure) return finish_failed(job);
    if (job->route.prepare == nullptr) return respond(job->exchange, std::move(job->response), job->caller);
    if (auto refused = pass_gates(job)) return respond(job->exchange, *std::move(refused), job->caller);
    if (!job->told)
      for (const auto& [name, value] : headers_of(job->prepared.plan.options))
        job->exchange->add_header(name, value);
    Generation::start(job->exchange, job->model, std::move(job->prepared.plan),
                      std::move(job->prepared.format));
  } catch (const std::exception& e) {
    const LogScope about(log_ids(job->call.trace, job->call.request_id));
    LOG(error, "request {}: {}", job->call.request_id, e.what());
    respond(job->exchange, error_response(500, "Internal error."), job->caller);
  }
}

}  // namespace sluice
