// GET /v1/requests, /v1/requests/{id}/timeline, /v1/requests/attribution: where the time of requests went. With
// API keys, each sees what was asked for with it and nothing else: token ids are text.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "observe/attribution.h"
#include "server/api.h"
#include "server/json_writer.h"
#include "server/query.h"

namespace sluice {

namespace {

constexpr std::string_view kPrefix = "/v1/requests", kTimeline = "/timeline";
constexpr int kLongestWindowS = 86400;

// What one caller sees.
struct View {
  const RequestLog& log;
  const ApiKeys& keys;
  uint32_t tenant;  // 0: no keys, all of it
  const StepLedger* ledger;
};

// Of those that are still known.
std::vector<StepRecord> steps_since(TimeNs from, const StepLedger* ledger) {
  if (ledger == nullptr) return {};
  std::vector<StepRecord> steps = ledger->last(StepLedger::kCapacity);
  std::erase_if(steps, [&](const StepRecord& r) { return r.planned_at < from; });
  return steps;
}

void append_spans(JsonWriter& w, const SpanTimes& spans) {
  w.key("spans").begin_array();
  for (int i = 0; i < kSpans; ++i) {
    w.begin_object().key("name").string(span_name(Span(i))).key("ms").number(ms(spans[Span(i)])).end_object();
  }
  w.end_array();
}

// The members that a list has too.
void append_head(JsonWriter& w, const RequestAccount& a, const char* state, const View& view) {
  w.key("id").string(a.answer_id).key("request_id").string(a.request_id).key("state").string(state);
  w.key("model").string(a.model).key("lane").string(lane_name(a.lane)).key("tenant").integer(a.tenant);
  if (a.tenant) w.key("key").string(view.keys.name(int(a.tenant)));
  w.key("started_at").number(a.started_at).key("prompt_tokens").integer(a.prompt_tokens);
}

void append_anomalies(JsonWriter& w, const ChoiceAccount& c) {
  w.key("anomalies").begin_array();
  for (const Anomaly& a : c.anomalies) {
    w.begin_object().key("kind").string(anomaly_name(a.kind)).key("cause").string(cause_name(a.cause()));
    w.key("token").integer(a.token).key("step").integer(a.step);
    w.key("value").number(a.value).key("usual").number(a.usual).key("chain").begin_array();
    for (const CauseLink& link : a.chain) {
      w.begin_object().key("cause").string(cause_name(link.cause)).key("share").number(link.share);
      w.key("text").string(link.text).end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().key("anomalies_cut").integer(c.anomalies_cut);
}

void append_choice(JsonWriter& w, const ChoiceAccount& c) {
  w.key("finish_reason").string(c.finish_reason).key("generated").integer(c.generated);
  w.key("cached_tokens").integer(c.cached_tokens).key("preemptions").integer(c.preemptions);
  w.key("steps").integer(c.steps);
  append_spans(w, c.spans);
  append_anomalies(w, c);
}

// `tokens` null: they were dropped.
void append_tokens(JsonWriter& w, const std::vector<TokenAccount>* tokens, int generated) {
  w.key("tokens").begin_array();
  if (tokens) {
    for (const TokenAccount& t : *tokens) {
      w.begin_object().key("id").integer(t.id).key("step").integer(t.step);
      w.key("latency_ms").number(t.latency_ms).key("kv_hit").number(t.kv_hit).key("z").number(t.z).end_object();
    }
  }
  w.end_array();
  if (tokens && !tokens->empty()) w.key("kv_reuse").number(least_kv_reuse(*tokens));
  w.key("tokens_cut").integer(generated - (tokens ? int64_t(tokens->size()) : 0));
}

void append_finished(JsonWriter& w, const RequestAccount& a, const View& view) {
  append_head(w, a, "finished", view);
  w.key("ended").string(a.ended).key("total_ms").number(ms(a.total()));
  append_choice(w, a.choices[a.last]);
}

HttpResponse finished_timeline(const RequestLog::Kept& kept, const View& view) {
  const RequestAccount& a = *kept.account;
  const auto tokens_of = [&](size_t k) {
    return kept.tokens && k < kept.tokens->size() ? &(*kept.tokens)[k] : nullptr;
  };
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object();
  append_finished(w, a, view);
  append_tokens(w, tokens_of(a.last), a.choices[a.last].generated);
  if (a.choices.size() > 1) {
    w.key("choices").begin_array();
    for (size_t k = 0; k < a.choices.size(); ++k) {
      w.begin_object().key("index").integer(int64_t(k));
      append_choice(w, a.choices[k]);
      append_tokens(w, tokens_of(k), a.choices[k].generated);
      w.end_object();
    }
    w.end_array();
  }
  w.end_object();
  return response;
}

// So far: of the choice that has got least far.
HttpResponse running_timeline(const RunningRequest& running, const View& view) {
  const RequestAccount& a = running.head;
  const TimeNs now = now_ns();
  size_t k = 0;
  while (k + 1 < running.choices.size() && running.choices[k]->spans.read(now).ended) ++k;
  const SpanClock::Reading engine = running.choices[k]->spans.read(now);
  SpanTimes spans = a.choices[k].spans;
  for (size_t i = 0; i < size_t(kSpans); ++i) spans.ns[i] += engine.spans.ns[i];
  if (engine.ended) {
    const TimeNs since = std::max<TimeNs>(0, now - engine.until());
    const TimeNs blocked = std::min(since, running.blocked.ns(now, engine.until()));
    spans[Span::format] += since - blocked;
    spans[Span::write] += blocked;
  }
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object();
  append_head(w, a, "running", view);
  w.key("total_ms").number(ms(spans.total()));
  w.key("steps").integer(running.choices[k]->steps.load(std::memory_order_relaxed));
  w.key("preemptions").integer(running.choices[k]->preemptions.load(std::memory_order_relaxed));
  w.key("cached_tokens").integer(running.choices[k]->cached_tokens.load(std::memory_order_relaxed));
  append_spans(w, spans);
  w.key("tokens").begin_array().end_array();
  w.end_object();
  return response;
}

HttpResponse timeline(std::string_view id, const View& view) {
  // Running ones first: an id that clients choose may repeat, and the newest is meant.
  if (const auto running = view.log.find_running(id, view.tenant)) return running_timeline(*running, view);
  if (const auto kept = view.log.find(id, view.tenant)) return finished_timeline(*kept, view);
  return error_response(
      404,
      fmt::format(
          "No request of that id. The last {} that generated anything are kept, by X-Request-Id and by the "
          "id of the answer's body.",
          RequestLog::kRequests),
      "id", "request_not_found");
}

HttpResponse list(const HttpRequest& request, const View& view) {
  constexpr int kMost = int(RequestLog::kRequests), kUsual = 50;
  const auto slowest = query_number(request.query, "slowest", 0, kMost);
  const auto recent = query_number(request.query, "recent", kUsual, kMost);
  if (!slowest) return bad_number("slowest", kMost);
  if (!recent) return bad_number("recent", kMost);
  auto kept = view.log.recent(*slowest ? RequestLog::kRequests : size_t(*recent), view.tenant);
  if (*slowest) {
    std::stable_sort(kept.begin(), kept.end(),
                     [](const auto& a, const auto& b) { return a.account->total() > b.account->total(); });
    kept.resize(std::min(kept.size(), size_t(*slowest)));
  }
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("object").string("list").key("data").begin_array();
  for (const RequestLog::Kept& k : kept) {
    w.begin_object();
    append_finished(w, *k.account, view);
    w.end_object();
  }
  w.end_array().end_object();
  return response;
}

void append_attribution(JsonWriter& w, const Attribution& a, double off_cpu) {
  w.key("requests").integer(a.requests).key("mean_ms").number(a.mean_ms());
  w.key("spans").begin_array();
  for (int i = 0; i < kSpans; ++i) {
    const Span span = Span(i);
    w.begin_object().key("name").string(span_name(span)).key("mean_ms").number(a.mean_ms(span));
    w.key("share").number(a.share(span)).end_object();
  }
  w.end_array().key("parts").begin_array();
  const auto parts = parts_of(a, off_cpu);
  for (size_t i = 0; i < parts.size(); ++i) {
    w.begin_object().key("name").string(kAttributionPartNames[i]);
    w.key("mean_ms").number(a.requests > 0 ? parts[i] * 1e-6 / a.requests : 0);
    w.key("share").number(a.total > 0 ? parts[i] / double(a.total) : 0).end_object();
  }
  w.end_array();
}

HttpResponse attribution(const HttpRequest& request, const View& view) {
  const auto window_s = query_number(request.query, "window_s", 60, kLongestWindowS);
  if (!window_s) return bad_number("window_s", kLongestWindowS);
  const TimeNs from = now_ns() - TimeNs(*window_s) * 1'000'000'000;
  auto kept = view.log.recent(RequestLog::kRequests, view.tenant);
  // Where the log is full and all of it lies in the window, there may have been more.
  const bool complete = kept.size() < RequestLog::kRequests || kept.back().account->finished < from;
  if (const auto prefix = query_value(request.query, "request_id_prefix"))
    std::erase_if(kept, [&](const auto& k) { return !k.account->request_id.starts_with(*prefix); });
  const WindowAttribution result = attribution_of(kept, from);
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("window_s").integer(*window_s);
  w.key("complete").boolean(complete);
  const double off_cpu = off_cpu_share(steps_since(from, view.ledger));
  append_attribution(w, result.all, off_cpu);
  w.key("slowest").begin_object();
  append_attribution(w, result.slowest, off_cpu);
  w.end_object().end_object();
  return response;
}

}  // namespace

HttpResponse requests_page(const HttpRequest& request, const RequestLog& requests, const ApiKeys& keys,
                           const StepLedger* ledger) {
  const View view{requests, keys, uint32_t(keys.find(request)), ledger};
  std::string_view rest = request.path;
  rest.remove_prefix(std::min(kPrefix.size(), rest.size()));
  if (rest.empty()) return list(request, view);
  rest.remove_prefix(1);
  if (rest == "attribution") return attribution(request, view);
  if (rest.size() > kTimeline.size() && rest.ends_with(kTimeline))
    return timeline(rest.substr(0, rest.size() - kTimeline.size()), view);
  return error_response(404, "There is /v1/requests/{id}/timeline, and /v1/requests/attribution.", {},
                        "unknown_url");
}

}  // namespace sluice
