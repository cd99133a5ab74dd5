// GET /v1/diagnosis?window_s=N: what costs throughput here, ranked, with the figures that say so
// (observe/diagnosis.h).
#include <cmath>

#include "observe/diagnosis.h"
#include "server/api.h"
#include "server/gates.h"
#include "server/json_writer.h"
#include "server/live_feed.h"
#include "server/query.h"

namespace sluice {
namespace {

constexpr int kUsualWindow_s = 30;

void append_share(JsonWriter& w, std::string_view key, double value, double peak) {
  w.key(key);
  if (peak > 0)
    w.number(value / peak);
  else
    w.null();
}

void append_finding(JsonWriter& w, const Finding& f) {
  w.begin_object().key("cause").string(f.cause).key("text").string(f.text);
  w.key("evidence").begin_object();
  for (const Evidence& e : f.evidence) w.key(e.name).number(std::isfinite(e.value) ? e.value : 0);
  w.end_object().key("setting").string(f.setting);
  w.key("lost").number(f.lost).key("gain").number(f.gain()).end_object();
}

// What all rules looked at, so that nothing to report is believed.
void append_seen(JsonWriter& w, const Vitals& v) {
  const StepVitals& s = v.steps;
  w.key("seen").begin_object();
  w.key("steps").integer(s.steps).key("generated_tokens_s").number(v.generated_s);
  w.key("finished_s").number(v.finished_s).key("running").number(s.running).key("waiting").number(s.waiting);
  w.key("sequences_per_step").number(s.sequences).key("gap_share").number(s.gap_share());
  w.key("bytes_s").number(s.bytes_s()).key("flops_s").number(s.flops_s());
  w.key("peak_bytes_s").number(v.peaks.bytes_s).key("peak_flops_s").number(v.peaks.flops_s);
  append_share(w, "bandwidth_share", s.bytes_s(), v.peaks.bytes_s);
  append_share(w, "compute_share", s.flops_s(), v.peaks.flops_s);
  w.key("queue_ms_p95").number(v.queue_p95_ms).key("cpu_share").number(v.host.cpu_share);
  w.key("cards").begin_array();
  for (const CardReading& c : v.cards) {
    w.begin_object().key("name").string(c.name).key("clock_mhz").number(c.clock_mhz);
    w.key("most_clock_mhz").number(c.most_clock_mhz).key("power_w").number(c.power_w);
    w.key("temperature_c").number(c.temperature_c).key("throttled_by").string(c.throttled_by);
    w.key("utilisation").number(c.utilisation).key("memory_utilisation").number(c.memory_utilisation);
    w.end_object();
  }
  w.end_array().end_object();
}

// Where the server's threads run.
void append_machine(JsonWriter& w, const MachineReport& machine) {
  w.key("machine").begin_object().key("plan").string(machine.plan).key("threads").begin_array();
  for (const MachineReport::Threads& t : machine.threads) {
    w.begin_object().key("name").string(t.name).key("count").integer(t.count).key("cpus").string(t.cpus);
    w.key("refused");
    if (t.refused.empty())
      w.null();
    else
      w.string(t.refused);
    w.end_object();
  }
  w.end_array().end_object();
}

const char* state_name(CircuitBreaker::State state) {
  return state == CircuitBreaker::State::closed ? "closed"
         : state == CircuitBreaker::State::open ? "open"
                                                : "half_open";
}

// The gates as they stand (gates.h).
void append_traffic(JsonWriter& w, const TrafficState& t) {
  w.key("traffic").begin_object().key("limit").integer(t.limit).key("waiting").integer(t.waiting);
  w.key("breakers").begin_object().key("stable").string(state_name(t.stable_breaker));
  w.key("canary").string(state_name(t.canary_breaker)).end_object();
  w.key("canary");
  if (t.has_canary) {
    w.begin_object().key("percent").number(t.canary_percent).key("rolled_back").boolean(t.canary_rolled_back);
    w.key("worse_in").string(t.canary_verdict).end_object();
  } else {
    w.null();
  }
  w.end_object();
}

}  // namespace

HttpResponse diagnosis_page(const HttpRequest& request, const LiveFeed& live, const RequestLog& log,
                            const TrafficState& traffic) {
  const auto window = query_number(request.query, "window_s", kUsualWindow_s, VitalsHistory::kLongestWindow_s);
  if (!window) return bad_number("window_s", VitalsHistory::kLongestWindow_s);
  Vitals vitals = live.vitals(*window);
  const auto requests = log.recent(RequestLog::kRequests);
  vitals.attribution = attribution_of(requests, now_ns() - TimeNs(vitals.window_s * 1e9));

  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("object").string("diagnosis").key("window_s").number(vitals.window_s);
  w.key("complete").boolean(vitals.complete);
  w.key("findings").begin_array();
  for (const Finding& finding : diagnose(vitals)) append_finding(w, finding);
  w.end_array();
  append_seen(w, vitals);
  append_traffic(w, traffic);
  append_machine(w, live.machine());
  w.end_object();
  return response;
}

}  // namespace sluice
