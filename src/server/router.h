// From a request to the function that answers it: routes, methods, keys, request ids, readiness, and the text
// pool. Catches every exception of a handler (answer: 500).
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/http.h"
#include "server/server.h"
#include "server/text_pool.h"

namespace sluice {

class Router final : public HttpHandler {
 public:
  explicit Router(const ServerConfig& config);

  // Network threads.
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse protocol_error(int status, std::string_view message) override;
  void answered(int status) override;

  // Any thread.
  void set_loading(const std::string& phase, double fraction);
  void serve_model(ServedModel& model);
  void set_draining() { draining_.store(true); }
  // Ends the pool; jobs that wait still run.
  void stop_text() { pool_.stop(); }

 private:
  struct Route;
  struct TextJob;
  static std::span<const Route> routes();

  void route_request(HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
                     const std::string& id);
  std::optional<uint32_t> tenant_of(const HttpRequest& request) const;
  HttpResponse not_ready() const;
  void run_model_route(const Route& route, HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
                       ApiCall call);
  ApiFailure read_headers(const HttpRequest& request, ApiCall& call) const;
  void run_job(const std::shared_ptr<TextJob>& job);
  void finish_job(const std::shared_ptr<TextJob>& job);

  HttpResponse get_root(const HttpRequest& request);
  HttpResponse get_health(const HttpRequest& request);
  HttpResponse get_ready(const HttpRequest& request);
  HttpResponse get_metrics(const HttpRequest& request);
  HttpResponse get_models(const HttpRequest& request);
  HttpResponse get_model(const HttpRequest& request);

  std::string_view model_name() const;

  const ServerConfig config_;
  TextPool pool_;
  std::atomic<ServedModel*> model_{nullptr};
  std::atomic<bool> draining_{false};
  const int64_t started_;  // Unix seconds
  mutable std::mutex loading_mutex_;
  std::string loading_phase_ = "starting";  // guarded by loading_mutex_
  double loading_fraction_ = 0;             // guarded by loading_mutex_
};

// x-request-id as it may be sent back and logged: visible ASCII, at most limits::kRequestIdChars; empty: none
// usable.
std::string clean_request_id(std::string_view header);

}  // namespace sluice
