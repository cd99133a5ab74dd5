// From a request to the function that answers it: routes, methods, keys, request ids, readiness, and the text
// pool. Catches every exception of a handler (answer: 500).
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "observe/tracer.h"
#include "server/api.h"
#include "server/cors.h"
#include "server/gates.h"
#include "server/http.h"
#include "server/live_feed.h"
#include "server/response_store.h"
#include "server/served_models.h"
#include "server/server.h"
#include "server/text_pool.h"

namespace sluice {

class Router final : public HttpHandler {
 public:
  Router(const ServerConfig& config, ApiKeys keys, std::unique_ptr<Tracer> tracer);

  // Network threads.
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse protocol_error(int status, std::string_view message) override;
  void answered(int status) override;
  void turn_ended() override;

  // Any thread.
  void set_loading(const std::string& phase, double fraction);
  void serve_model(std::shared_ptr<ServedModel> model, LiveSources sources);
  void serve_canary(std::shared_ptr<ServedModel> model);
  void set_draining();
  Status set_traffic(const TrafficSettings& settings) { return gates_.configure(settings); }
  // Of all answers: nothing is finished after it.
  void stop_traces() { tracer_->stop(); }
  // Ends the pools, jobs that wait still run; and what other servers answer.
  void stop_text() {
    pool_.stop();
    grammar_pool_.stop();
    gates_.stop();
  }

 private:
  using PageCall = HttpResponse (Router::*)(const HttpRequest&);
  // What exists. Paths that end in '/' take one more segment.
  struct Route {
    std::string_view method, path;
    std::string_view about;
    bool open = false;  // needs no key
    PageCall page = nullptr;
    TextCall text = nullptr;
    PrepareCall prepare = nullptr;
    bool live = false;  // the event stream of LiveFeed
  };
  struct TextJob;
  // Who asks, as far as answering needs it.
  struct Caller {
    std::string id;  // of the request
    ErrorStyle style = ErrorStyle::openai;
    uint32_t tenant = 0;  // whose key it is: its place in ApiKeys, from 1; 0: keys are not asked for
    // Of a request for generated text, else empty.
    TraceContext trace = {};
    std::string_view route = {};
    TimeNs began = 0;
  };
  static std::span<const Route> routes();
  static bool may_leave(const Route& route);

  void answer_here(const Route& route, HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
                   const Caller& caller, Permit permit = {});
  bool answer_by_canary(const Route& route, HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
                        const Caller& caller);
  std::shared_ptr<TextJob> job_of(const Route& route, HttpRequest& request,
                                  const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                                  Pool pool);
  void go_to_named_canary(const std::shared_ptr<TextJob>& job);
  void fall_back(const std::shared_ptr<TextJob>& job);
  void tell_gates();
  void route_request(HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange, Caller& caller);
  void answer_unrouted(const HttpRequest& request, const std::string& allow,
                       const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
  void begin_trace(const Route& route, const HttpRequest& request, HttpExchange& exchange, Caller& caller);
  void respond(const std::shared_ptr<HttpExchange>& exchange, HttpResponse response, const Caller& caller);
  HttpResponse not_ready() const;
  void run_model_route(const std::shared_ptr<TextJob>& job);
  static ApiFailure check_single_headers(const HttpRequest& request);
  ApiFailure read_headers(const HttpRequest& request, ApiCall& call) const;
  void run_job(const std::shared_ptr<TextJob>& job);
  bool wants_compile(TextJob& job) const;
  void compile_grammar(TextJob& job);
  void finish_prepared(const std::shared_ptr<TextJob>& job);
  void finish_job(const std::shared_ptr<TextJob>& job);
  void finish_failed(const std::shared_ptr<TextJob>& job);
  std::optional<HttpResponse> pass_gates(const std::shared_ptr<TextJob>& job);

  HttpResponse get_root(const HttpRequest& request);
  HttpResponse get_page_file(const HttpRequest& request);
  HttpResponse get_routes(const HttpRequest& request);
  HttpResponse get_health(const HttpRequest& request);
  HttpResponse get_ready(const HttpRequest& request);
  HttpResponse get_metrics(const HttpRequest& request);
  HttpResponse get_models(const HttpRequest& request);
  HttpResponse get_model(const HttpRequest& request);
  HttpResponse get_requests(const HttpRequest& request);
  HttpResponse get_diagnosis(const HttpRequest& request);
  HttpResponse get_openapi(const HttpRequest& request);
  HttpResponse get_response(const HttpRequest& request);
  HttpResponse delete_response(const HttpRequest& request);

  std::string name_of(const ServedModel* model) const;
  std::string canary_name(const ServedModel& canary, const ServedModel* stable) const;
  std::string model_name() const { return name_of(models_.get().get()); }

  const ServerConfig config_;
  Gates gates_;
  const Cors cors_;
  ResponseStore responses_;
  const std::shared_ptr<Tracer> tracer_;  // log_ holds it too
  TextPool pool_;
  const std::shared_ptr<RequestLog> log_ = std::make_shared<RequestLog>();  // answers under way hold it too
  LiveFeed live_;
  TextPool grammar_pool_;  // apart: a compile may take seconds
  ServedModels models_;
  std::atomic<bool> draining_{false};
  const int64_t started_;                 // Unix seconds
  std::vector<Counter*> route_requests_;  // of each route, and at the end of what has none
  mutable std::mutex loading_mutex_;
  std::string loading_phase_ = "starting";  // guarded by loading_mutex_
  double loading_fraction_ = 0;             // guarded by loading_mutex_
};

// x-request-id as it may be sent back and logged: visible ASCII, at most limits::kRequestIdChars; empty: none
// usable.
std::string clean_request_id(std::string_view header);

}  // namespace sluice
