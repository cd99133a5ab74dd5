#include "observe/otlp.h"

#include <string_view>

#include "observe/protobuf.h"

namespace sluice {
namespace {

constexpr int kInternal = 1, kServer = 2;  // Span.SpanKind
constexpr int kStatusError = 2;            // Status.StatusCode
constexpr size_t kChoicesShown = 32;       // whose spans are exported, of one request

std::string_view view(std::span<const uint8_t> id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

// The attributes of one message, in its field `field`.
class Attributes {
 public:
  Attributes(ProtobufWriter& out, int field) : out_(out), field_(field) {}
  void text(std::string_view key, std::string_view value) {
    if (!value.empty()) add(key, [&](ProtobufWriter& v) { v.bytes(1, value); });
  }
  void integer(std::string_view key, int64_t value) {
    add(key, [&](ProtobufWriter& v) { v.varint(3, uint64_t(value)); });
  }
  void real(std::string_view key, double value) {
    add(key, [&](ProtobufWriter& v) { v.real(4, value); });
  }
  void texts(std::string_view key, std::span<const std::string_view> values) {
    add(key, [&](ProtobufWriter& v) {
      v.message(5, [&](ProtobufWriter& list) {
        for (const std::string_view text : values)
          list.message(1, [&](ProtobufWriter& item) { item.bytes(1, text); });
      });
    });
  }
  void span_time(Span span, const SpanTimes& times) {
    if (times[span] > 0) real(std::string("sluice.span.") + span_name(span) + "_ms", ms(times[span]));
  }

 private:
  template <typename Fill>
  void add(std::string_view key, Fill fill) {
    out_.message(field_, [&](ProtobufWriter& pair) {
      pair.bytes(1, key);
      pair.message(2, fill);
    });
  }
  ProtobufWriter& out_;
  int field_;
};

std::string_view operation_of(const RequestAccount& account) {
  if (account.route == "/v1/completions") return "text_completion";
  return account.route == "/v1/embeddings" ? "embeddings" : "chat";
}

class SpanWriter {
 public:
  SpanWriter(ProtobufWriter& out, const FinishedTrace& trace)
      : out_(out), a_(*trace.account), why_(trace.why) {}

  void write_all() {
    root();
    if (a_.choices.empty()) return;
    const SpanTimes& last = a_.spans();
    const TimeNs submitted = a_.choices[a_.last].submitted;
    child("accept", a_.began, submitted, last, {Span::read, Span::parse, Span::tokenize});
    for (size_t k = 0; k < a_.choices.size(); ++k)
      if (k < kChoicesShown || k == a_.last) choice(k);
    const TimeNs opened = a_.opened ? a_.opened : a_.finished;
    child("stream", opened, a_.finished, last, {Span::format, Span::write});
  }

 private:
  uint64_t unix_ns(TimeNs t) const { return uint64_t(a_.started_at * 1e9) + uint64_t(t - a_.began); }

  // Unlike each other within a request, and as random as its own id.
  SpanId next_id() {
    SpanId id = a_.trace.span_id;
    const uint32_t mixed = ++children_ * 0x9e3779b1u;
    for (size_t i = 0; i < 4; ++i) id[i] ^= uint8_t(mixed >> (8 * i));
    return id;
  }

  template <typename Fill>
  void span(const SpanId& id, const SpanId& parent, std::string_view name, int kind, TimeNs from, TimeNs to,
            Fill fill) {
    out_.message(2, [&](ProtobufWriter& s) {
      s.bytes(1, view(a_.trace.trace_id));
      s.bytes(2, view(id));
      if (!a_.trace.state.empty()) s.bytes(3, a_.trace.state);
      if (parent != SpanId{}) s.bytes(4, view(parent));
      s.bytes(5, name);
      s.varint(6, uint64_t(kind));
      s.fixed64(7, unix_ns(from));
      s.fixed64(8, unix_ns(std::max(from, to)));
      Attributes attributes(s, 9);
      fill(s, attributes);
    });
  }

  void root() {
    const std::string name = std::string(operation_of(a_)) + (a_.model.empty() ? "" : " " + a_.model);
    span(a_.trace.span_id, a_.trace.parent_id, name, kServer, a_.began, a_.finished,
         [&](ProtobufWriter& s, Attributes& attributes) {
           describe_request(attributes);
           describe_answer(attributes);
           if (is_error(a_)) s.message(15, [](ProtobufWriter& status) { status.varint(3, kStatusError); });
         });
  }

  void describe_request(Attributes& attributes) const {
    attributes.text("gen_ai.operation.name", operation_of(a_));
    attributes.text("gen_ai.provider.name", "sluice");
    attributes.text("gen_ai.request.model", a_.model);
    if (a_.asked.max_tokens >= 0) attributes.integer("gen_ai.request.max_tokens", a_.asked.max_tokens);
    if (a_.asked.temperature >= 0) attributes.real("gen_ai.request.temperature", a_.asked.temperature);
    if (a_.asked.top_p >= 0) attributes.real("gen_ai.request.top_p", a_.asked.top_p);
    if (a_.choices.size() > 1) attributes.integer("gen_ai.request.choice.count", int64_t(a_.choices.size()));
    attributes.text("http.request.method", "POST");
    attributes.text("http.route", a_.route);
    attributes.text("sluice.request_id", a_.request_id);
    attributes.text("sluice.lane", lane_name(a_.lane));
    if (a_.tenant > 0) attributes.integer("sluice.tenant", a_.tenant);
    attributes.text("sluice.kept_by", kept_by_name(why_));
  }

  void describe_answer(Attributes& attributes) const {
    if (a_.status > 0) attributes.integer("http.response.status_code", a_.status);
    if (is_error(a_)) attributes.text("error.type", a_.choices.empty() ? std::to_string(a_.status) : a_.ended);
    if (a_.choices.empty()) return;
    attributes.text("gen_ai.response.model", a_.model);
    attributes.text("gen_ai.response.id", a_.answer_id);
    std::vector<std::string_view> reasons;
    int generated = 0, cached = 0, preemptions = 0;
    for (const ChoiceAccount& choice : a_.choices) {
      reasons.push_back(choice.finish_reason);
      generated += choice.generated, cached += choice.cached_tokens, preemptions += choice.preemptions;
    }
    attributes.texts("gen_ai.response.finish_reasons", reasons);
    attributes.integer("gen_ai.usage.input_tokens", a_.prompt_tokens);
    attributes.integer("gen_ai.usage.output_tokens", generated);
    attributes.integer("gen_ai.usage.cache_read.input_tokens", cached);
    if (preemptions > 0) attributes.integer("sluice.preemptions", preemptions);
    attributes.text("sluice.ended", a_.ended);
  }

  void child(std::string_view name, TimeNs from, TimeNs to, const SpanTimes& times,
             std::initializer_list<Span> parts, int choice = -1, TimeNs longest_gap = 0,
             std::span<const Anomaly> anomalies = {}) {
    span(next_id(), a_.trace.span_id, name, kInternal, from, to,
         [&](ProtobufWriter& s, Attributes& attributes) {
           for (const Anomaly& anomaly : anomalies) event(s, anomaly);
           for (const Span part : parts) attributes.span_time(part, times);
           if (choice >= 0) attributes.integer("sluice.choice", choice);
           if (longest_gap > 0) attributes.real("sluice.longest_token_gap_ms", ms(longest_gap));
         });
  }

  void event(ProtobufWriter& span, const Anomaly& anomaly) const {
    span.message(11, [&](ProtobufWriter& e) {
      e.fixed64(1, unix_ns(anomaly.at));
      e.bytes(2, anomaly_name(anomaly.kind));
      Attributes attributes(e, 3);
      attributes.text("sluice.anomaly.cause", cause_name(anomaly.cause()));
      attributes.text("sluice.anomaly.text", anomaly.chain.empty() ? "" : anomaly.chain[0].text);
      attributes.integer("sluice.anomaly.token", anomaly.token);
      attributes.integer("sluice.anomaly.step", anomaly.step);
      attributes.real("sluice.anomaly.value", anomaly.value);
      attributes.real("sluice.anomaly.usual", anomaly.usual);
    });
  }

  // A choice that was never admitted, or has no token, has no span for what did not come.
  void choice(size_t k) {
    const ChoiceAccount& c = a_.choices[k];
    const int shown = a_.choices.size() > 1 ? int(k) : -1;
    const TimeNs admitted = c.submitted + c.spans[Span::queue];
    child("queue", c.submitted, std::min(admitted, c.engine_end), c.spans, {Span::queue}, shown);
    if (admitted >= c.engine_end) return;
    const TimeNs first = c.first_token ? c.first_token : c.engine_end;
    child("prefill", admitted, first, c.spans, {Span::prefix_lookup, Span::prefill, Span::prefill_wait}, shown);
    if (!c.first_token) return;
    child("decode", first, c.engine_end, c.spans,
          {Span::decode, Span::decode_wait, Span::preempted, Span::recompute, Span::paused}, shown,
          c.longest_gap, c.anomalies);
  }

  ProtobufWriter& out_;
  const RequestAccount& a_;
  const KeptBy why_;
  uint32_t children_ = 0;
};

}  // namespace

const char* kept_by_name(KeptBy why) {
  constexpr const char* kNames[] = {"parent", "ratio", "error", "slow", "anomaly"};
  return kNames[size_t(why)];
}

bool is_error(const RequestAccount& account) {
  const std::string_view ended = account.ended;
  return account.status == 429 || account.status >= 500 || ended == "deadline" || ended == "engine" ||
         ended == "shutdown" || ended == "write_timeout";
}

std::string otlp_traces(std::span<const FinishedTrace> traces, const ResourceAttributes& resource) {
  std::string out;
  ProtobufWriter(out).message(1, [&](ProtobufWriter& of_resource) {
    of_resource.message(1, [&](ProtobufWriter& r) {
      Attributes attributes(r, 1);
      for (const auto& [key, value] : resource) attributes.text(key, value);
    });
    of_resource.message(2, [&](ProtobufWriter& of_scope) {
      of_scope.message(1, [](ProtobufWriter& scope) { scope.bytes(1, "sluice"); });
      for (const FinishedTrace& trace : traces) SpanWriter(of_scope, trace).write_all();
    });
  });
  return out;
}

}  // namespace sluice
