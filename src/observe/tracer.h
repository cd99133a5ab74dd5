// Decides which requests leave a trace, and exports those in batches from a thread of its own.
//
// At the head: a caller's traceparent decides; a trace that begins here is sampled by ratio. At the tail, when
// the account is finished: errors and slow requests are kept whatever the head said (the answer's traceparent
// has said so by then, and spans of other services may be missing around such a trace). An account is made for
// every request anyway, so a request that is not kept costs the decision alone.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/meter.h"
#include "base/result.h"
#include "observe/exemplars.h"
#include "observe/otlp.h"
#include "observe/tracing_settings.h"

namespace sluice {

// Takes an ExportTraceServiceRequest somewhere. post() is called by one thread.
class TraceSink {
 public:
  enum class Outcome : uint8_t {
    taken,
    busy,         // not now: 429, 502, 503, 504
    unreachable,  // no connection, no answer in time
    refused,      // for good
  };
  struct Answer {
    Outcome outcome = Outcome::taken;
    std::string why;  // in words, unless it was taken
  };
  virtual ~TraceSink() = default;
  virtual Answer post(const std::string& body) = 0;
  virtual void abort() {}  // any thread: post() is to return soon, now and from now on
};

class Tracer {
 public:
  static constexpr size_t kBatch = 512;  // requests of one export
  static constexpr int kAttempts = 5;    // to export a batch, before it is dropped
  static constexpr int kBackoffMs = 1000, kMaxBackoffMs = 30000;

  // Errors: kInvalidArgument (field: the setting). With an empty endpoint it never keeps anything, and begins
  // no traces of its own.
  static Result<std::unique_ptr<Tracer>> create(const TracingSettings& settings);
  // `sink` null: off. `backoff_ms`: before the second attempt, doubled with each.
  Tracer(const TracingSettings& settings, std::unique_ptr<TraceSink> sink, int backoff_ms = kBackoffMs);
  ~Tracer() { stop(); }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Of a request, by its headers ("": not there). Off: a trace only where the caller has one, for logs and for
  // the answer's headers.
  TraceContext begin(std::string_view traceparent, std::string_view tracestate) const;
  // Any thread; keeps the account or not. Never blocks on the network.
  void finish(const std::shared_ptr<const RequestAccount>& account);
  // Exports what waits, within two seconds; nothing is kept from then on.
  void stop();
  // Whether and why a finished request is kept.
  bool keeps(const RequestAccount& account, KeptBy& why) const;
  // Of the traces that are kept.
  const Exemplars& exemplars() const { return exemplars_; }

 private:
  void run();
  std::vector<FinishedTrace> next_batch();
  void send(const std::vector<FinishedTrace>& batch);
  bool stopping() const;
  void say_once(const TraceSink::Answer& answer);

  const TracingSettings settings_;
  const ResourceAttributes resource_;
  const std::unique_ptr<TraceSink> sink_;
  const int backoff_ms_;
  Counter &exported_, &dropped_full_, &dropped_unreachable_, &dropped_refused_;
  Exemplars exemplars_;
  bool down_ = false;  // exporter thread: said so, and it has not answered since

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FinishedTrace> waiting_;  // guarded by mutex_
  bool stopping_ = false;              // guarded by mutex_
  bool ended_ = false;                 // guarded by mutex_: the thread is done
  std::thread thread_;
};

}  // namespace sluice
