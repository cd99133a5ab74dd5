// What the server tells without asking the engine: its page, its state, its metrics, its models, what it keeps.
#include "base/meter.h"
#include "observe/process_meters.h"
#include "observe/prometheus.h"
#include "server/answer_json.h"
#include "server/json_writer.h"
#include "server/openapi.h"
#include "server/page.h"
#include "server/router.h"

namespace sluice {
namespace {

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

}  // namespace

HttpResponse Router::get_root(const HttpRequest& request) {
  return config_.page ? page_response("index.html", request) : get_routes(request);
}

HttpResponse Router::get_page_file(const HttpRequest& request) {
  if (!config_.page) return error_response(404, "The page is turned off (server.page).", {}, "unknown_url");
  return page_response(std::string_view(request.path).substr(std::string_view("/page/").size()), request);
}

HttpResponse Router::get_health(const HttpRequest&) { return json_response(R"({"status":"ok"})"); }

HttpResponse Router::get_ready(const HttpRequest&) {
  HttpResponse response;
  response.status = 503;
  response.headers.emplace_back("Retry-After", "1");
  JsonWriter w(response.body);
  w.begin_object().key("status");
  const std::shared_ptr<ServedModel> model = models_.get();
  if (draining_.load(std::memory_order_relaxed)) {
    w.string("draining").key("reason").string("The server is shutting down.");
  } else if (model == nullptr) {
    std::lock_guard lock(loading_mutex_);
    w.string("loading").key("reason").string("The model is still loading.");
    w.key("phase").string(loading_phase_).key("progress").number(loading_fraction_);
  } else {
    const EngineStatus status = model->engine().status();
    if (status.draining) {
      w.string("draining").key("reason").string("The engine is shutting down.");
    } else if (status.stuck) {
      w.string("stuck").key("reason").string("A step of the engine has been running for too long.");
    } else {
      response.status = 200;
      response.headers.clear();
      w.string("ready").key("model").string(name_of(model.get()));
      w.key("running").integer(status.running).key("waiting").integer(status.waiting);
    }
  }
  w.end_object();
  return response;
}

HttpResponse Router::get_metrics(const HttpRequest& request) {
  update_process_meters();
  gates_.show();
  const bool aliases = request.query.find("aliases=0") == std::string::npos;
  HttpResponse response;
  const auto also = aliases ? vllm_aliases() : std::span<const MeterAlias>();
  const std::string labels = prometheus_label("model_name", model_name());
  const bool open = wants_open_metrics(request.header("accept"));
  response.content_type = std::string(open ? kOpenMetricsContentType : kPrometheusContentType);
  response.body = open ? open_metrics_text(meter::all(), also, labels, &tracer_->exemplars())
                       : prometheus_text(meter::all(), also, labels);
  return response;
}

namespace {

void append_model(JsonWriter& w, std::string_view name, ServedModel& model, int64_t created) {
  const EngineInfo& info = model.engine().info();
  w.begin_object().key("id").string(name).key("object").string("model").key("created").integer(created);
  w.key("owned_by")
      .string("sluice")
      .key("root")
      .string(model.path())
      .key("max_model_len")
      .integer(info.context);
  w.key("meta").begin_object();
  w.key("architecture").string(info.spec.architecture).key("n_vocab").integer(info.spec.vocab);
  w.key("n_ctx_train").integer(info.spec.context).key("n_embd").integer(info.spec.hidden);
  w.key("weight_bytes").integer(int64_t(info.weight_bytes)).key("kv_bytes").integer(int64_t(info.kv_bytes));
  w.key("block_tokens").integer(info.block_tokens).key("blocks").integer(info.blocks);
  w.key("chat_template").boolean(model.chat_template() != nullptr);
  w.end_object().end_object();
}

}  // namespace

HttpResponse Router::get_models(const HttpRequest&) {
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("object").string("list").key("data").begin_array();
  const auto [model, canary] = models_.both();
  const std::string name = name_of(model.get());
  if (model != nullptr) append_model(w, name, *model, started_);
  // Under another name, by which it can be asked for.
  if (canary != nullptr && canary_name(*canary, model.get()) != name)
    append_model(w, canary_name(*canary, model.get()), *canary, started_);
  w.end_array().end_object();
  return response;
}

HttpResponse Router::get_requests(const HttpRequest& request) {
  const auto model = models_.get();
  return requests_page(request, *log_, gates_.keys(),
                       model != nullptr ? model->engine().step_ledger() : nullptr);
}

HttpResponse Router::get_diagnosis(const HttpRequest& request) {
  if (models_.get() == nullptr) return not_ready();
  return diagnosis_page(request, live_, *log_, gates_.state());
}

HttpResponse Router::get_model(const HttpRequest& request) {
  const auto [model, canary] = models_.both();
  if (model == nullptr) return not_ready();
  const std::string_view asked = std::string_view(request.path).substr(std::string_view("/v1/models/").size());
  HttpResponse response;
  JsonWriter w(response.body);
  if (names_model(asked, ApiCall{*model, config_, name_of(model.get()), ""})) {
    append_model(w, name_of(model.get()), *model, started_);
  } else if (canary != nullptr &&
             names_model(asked, ApiCall{*canary, config_, canary_name(*canary, model.get()), ""})) {
    append_model(w, canary_name(*canary, model.get()), *canary, started_);
  } else {
    return error_response(404, "The model '" + std::string(asked.substr(0, 128)) + "' does not exist here.",
                          "model", "model_not_found");
  }
  return response;
}

HttpResponse Router::get_openapi(const HttpRequest&) { return json_response(std::string(openapi_document())); }

namespace {

std::string_view response_id(const HttpRequest& request) {
  return std::string_view(request.path).substr(std::string_view("/v1/responses/").size());
}

HttpResponse no_such_response() {
  return error_response(
      404, "There is no such response: it was not stored, is another key's, or has been dropped since.", {},
      "response_not_found");
}

}  // namespace

HttpResponse Router::get_response(const HttpRequest& request) {
  const auto stored = responses_.find(response_id(request), gates_.identify(request));
  return stored == nullptr ? no_such_response() : json_response(stored->response);
}

HttpResponse Router::delete_response(const HttpRequest& request) {
  const std::string_view id = response_id(request);
  if (!responses_.erase(id, gates_.identify(request))) return no_such_response();
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object()
      .key("id")
      .string(id)
      .key("object")
      .string("response")
      .key("deleted")
      .boolean(true)
      .end_object();
  return response;
}

}  // namespace sluice
