#include "observe/tracer.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>

#include "base/log.h"
#include "observe/otlp_grpc.h"
#include "observe/otlp_http.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

constexpr int kLastWordsMs = 2000;  // for what waits when the server stops

Counter& dropped(const char* reason) {
  return meter::counter("sluice_traces_dropped_total", "Traces that were to be kept and are lost, by why.",
                        std::string("reason=\"") + reason + "\"");
}

ResourceAttributes resource_of(const TracingSettings& settings) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  ResourceAttributes resource = {{"service.name", settings.service_name},
                                 {"host.name", host},
                                 {"process.pid", std::to_string(getpid())},
                                 {"telemetry.sdk.name", "sluice"},
                                 {"telemetry.sdk.language", "cpp"}};
  for (const std::string& pair : settings.resource_attributes) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = pair.substr(0, equals);
    std::erase_if(resource, [&](const auto& known) { return known.first == key; });
    resource.emplace_back(key, pair.substr(equals + 1));
  }
  return resource;
}

Status check_pairs(const std::vector<std::string>& pairs, const char* field) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      return Error{ErrorCode::kInvalidArgument, "expected KEY=VALUE, got '" + pair + "'", field};
  }
  return {};
}

// Names are tokens (RFC 9110, section 5.6.2), and none that an export sets itself.
Status check_headers(const std::vector<std::string>& pairs) {
  for (const std::string& pair : pairs) {
    std::string name = pair.substr(0, pair.find('='));
    const auto is_token = [](unsigned char c) { return std::isalnum(c) || std::strchr("!#$%&'*+-.^_`|~", c); };
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (!std::all_of(name.begin(), name.end(), is_token))
      return Error{ErrorCode::kInvalidArgument, "'" + name + "' is no name of a header", "tracing.headers"};
    for (const char* own : {"host", "te", "content-type", "content-length", "transfer-encoding", "connection",
                            "user-agent", "grpc-timeout", "grpc-encoding"})
      if (name == own)
        return Error{ErrorCode::kInvalidArgument, "'" + name + "' is set by the export itself",
                     "tracing.headers"};
  }
  return {};
}

// A stall makes tokens of all streams slow; those traces are kept by ratio alone.
bool has_odd_text(const ChoiceAccount& choice) {
  return std::any_of(choice.anomalies.begin(), choice.anomalies.end(), [](const Anomaly& a) {
    return a.kind != AnomalyKind::slow_token && a.kind != AnomalyKind::low_reuse;
  });
}

}  // namespace

Result<std::unique_ptr<Tracer>> Tracer::create(const TracingSettings& settings) {
  if (Status status = check_pairs(settings.resource_attributes, "tracing.resource_attributes"); !status.ok())
    return std::move(status).error();
  if (Status status = check_pairs(settings.headers, "tracing.headers"); !status.ok())
    return std::move(status).error();
  if (Status status = check_headers(settings.headers); !status.ok()) return std::move(status).error();
  if (settings.endpoint.empty()) return std::make_unique<Tracer>(settings, nullptr);
  if (settings.protocol != "http/protobuf" && settings.protocol != "grpc")
    return Error{ErrorCode::kInvalidArgument,
                 "http/protobuf and grpc are spoken, not '" + settings.protocol +
                     "' (from the settings, or OTEL_EXPORTER_OTLP_PROTOCOL)",
                 "tracing.protocol"};
  auto sink = settings.protocol == "grpc" ? OtlpGrpc::create(settings) : OtlpHttp::create(settings);
  if (!sink.ok()) return sink.error();
  return std::make_unique<Tracer>(settings, std::move(sink).value());
}

Tracer::Tracer(const TracingSettings& settings, std::unique_ptr<TraceSink> sink, int backoff_ms)
    : settings_(settings),
      resource_(resource_of(settings)),
      sink_(std::move(sink)),
      backoff_ms_(backoff_ms),
      exported_(meter::counter("sluice_traces_exported_total", "Traces that the collector has taken.")),
      dropped_full_(dropped("queue_full")),
      dropped_unreachable_(dropped("unreachable")),
      dropped_refused_(dropped("refused")) {
  if (sink_) thread_ = std::thread([this] { run(); });
}

void Tracer::stop() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, milliseconds(kLastWordsMs), [this] { return ended_; });
    if (!ended_) sink_->abort();
  }
  thread_.join();
}

TraceContext Tracer::begin(std::string_view traceparent, std::string_view tracestate) const {
  if (sink_ == nullptr && (traceparent.empty() || !parse_traceparent(traceparent))) return {};
  return begin_trace(traceparent, tracestate, settings_.sample_ratio);
}

bool Tracer::keeps(const RequestAccount& account, KeptBy& why) const {
  if (sink_ == nullptr || !account.trace) return false;
  if (account.trace.sampled) {
    why = account.trace.has_parent() ? KeptBy::parent : KeptBy::ratio;
  } else if (is_error(account)) {
    why = KeptBy::error;
  } else if (settings_.slow_ms > 0 && account.total() > TimeNs(settings_.slow_ms) * 1'000'000) {
    why = KeptBy::slow;
  } else if (std::any_of(account.choices.begin(), account.choices.end(), has_odd_text)) {
    why = KeptBy::anomaly;
  } else {
    return false;
  }
  return true;
}

void Tracer::finish(const std::shared_ptr<const RequestAccount>& account) {
  FinishedTrace trace{account};
  if (!keeps(*account, trace.why)) return;
  exemplars_.note(*account);
  std::lock_guard lock(mutex_);
  if (stopping_ || waiting_.size() >= size_t(settings_.queue_requests)) return dropped_full_.add();
  waiting_.push_back(std::move(trace));
  // Others of this interval are waited for, unless they make a batch by themselves.
  if (waiting_.size() == kBatch) changed_.notify_all();
}

void Tracer::run() {
  pthread_setname_np(pthread_self(), "sluice-traces");
  for (;;) {
    const std::vector<FinishedTrace> batch = next_batch();
    if (batch.empty()) break;
    send(batch);
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// Empty: the server stops and nothing waits.
std::vector<FinishedTrace> Tracer::next_batch() {
  std::unique_lock lock(mutex_);
  do {
    changed_.wait_for(lock, milliseconds(settings_.export_interval_ms),
                      [this] { return stopping_ || waiting_.size() >= kBatch; });
  } while (waiting_.empty() && !stopping_);
  std::vector<FinishedTrace> batch;
  const auto end = waiting_.begin() + ptrdiff_t(std::min(waiting_.size(), kBatch));
  batch.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return batch;
}

bool Tracer::stopping() const {
  std::lock_guard lock(mutex_);
  return stopping_;
}

void Tracer::send(const std::vector<FinishedTrace>& batch) {
  const std::string body = otlp_traces(batch, resource_);
  int backoff_ms = backoff_ms_;
  for (int attempt = 1;; ++attempt) {
    const TraceSink::Answer answer = sink_->post(body);
    if (answer.outcome == TraceSink::Outcome::taken) {
      if (std::exchange(down_, false)) LOG(info, "traces: {} takes them again", settings_.endpoint);
      return exported_.add(batch.size());
    }
    say_once(answer);
    if (answer.outcome == TraceSink::Outcome::refused) return dropped_refused_.add(batch.size());
    if (attempt == kAttempts || stopping()) return dropped_unreachable_.add(batch.size());
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, milliseconds(backoff_ms), [this] { return stopping_; });
    backoff_ms = std::min(2 * backoff_ms, kMaxBackoffMs);
  }
}

void Tracer::say_once(const TraceSink::Answer& answer) {
  if (std::exchange(down_, true)) return;
  LOG(warn, "traces: {}: {}; they are kept for a while and then dropped (sluice_traces_dropped_total)",
      settings_.endpoint, answer.why);
}

}  // namespace sluice
