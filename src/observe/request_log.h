// The account of each request: its spans and tokens, kept for the last requests so that anybody can ask where
// the time went. Written by network threads as answers end; nothing here is called by the engine thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/meter.h"
#include "engine/engine.h"
#include "observe/anomaly_watch.h"
#include "observe/trace_context.h"

namespace sluice {

struct TokenAccount {
  int32_t id = -1;
  int32_t step = 0;      // of the engine
  float latency_ms = 0;  // since the choice's previous token; the first: since the request began
  float kv_hit = 0;      // TokenEvent::kv_hit
  float z = 0;           // of latency_ms, by its lane's mean and deviation; 0: not enough seen
};

// One choice: one sequence of the engine.
struct ChoiceAccount {
  SpanTimes spans;  // add up to RequestAccount::total()
  int generated = 0;
  int cached_tokens = 0;
  int preemptions = 0;
  int steps = 0;
  const char* finish_reason = "";  // stop, length, or why the request ended: RequestAccount::ended
  TimeNs submitted = 0;            // to the engine
  TimeNs first_token = 0;          // 0: it has none
  TimeNs longest_gap = 0;          // between two of its tokens
  TimeNs engine_end = 0;           // the engine's last word on it
  std::vector<Anomaly> anomalies;  // the first kMostAnomalies
  int anomalies_cut = 0;           // those beyond
  static constexpr int kMostAnomalies = 16;
};

// Of what was asked, what traces show. Below 0: not told.
struct AskedFor {
  int max_tokens = -1;
  float temperature = -1;
  float top_p = -1;
  bool biased = false, constrained = false, penalised = false;  // logit_bias, grammar, penalties
};

// One HTTP request that the engine took; one that it did not take has no choices and is told to no one but
// RequestLog::listen's function.
struct RequestAccount {
  std::string request_id;  // x-request-id
  std::string answer_id;   // chatcmpl-…, cmpl-…
  std::string model;
  std::string_view route;  // "/v1/chat/completions"; lives for the process
  AskedFor asked;
  TraceContext trace;  // false: it has none
  Lane lane = Lane::standard;
  uint32_t tenant = 0;
  double started_at = 0;  // Unix seconds
  TimeNs began = 0;       // its first byte was read
  TimeNs opened = 0;      // its answer's first byte was made; 0: there was none
  TimeNs finished = 0;    // its answer's last byte was handed to the socket
  int status = 0;         // of HTTP; 0: no answer was begun
  int prompt_tokens = 0;
  const char* ended = "";  // completed, deadline, client_disconnect, write_timeout, shutdown, engine
  std::vector<ChoiceAccount> choices;
  size_t last = 0;  // the choice that ended last: what the answer waited for

  TimeNs total() const { return finished - began; }
  const SpanTimes& spans() const { return choices[last].spans; }
};

using TokenLists = std::vector<std::vector<TokenAccount>>;  // by choice

// The least mean kv_hit of kReuseWindow tokens that follow one another, or of all if there are fewer.
inline constexpr size_t kReuseWindow = 32;
double least_kv_reuse(std::span<const TokenAccount> tokens);

// How long a client did not take what there was for it after the engine's last word. Written by its
// connection's thread, read by any.
struct Blocked {
  std::atomic<TimeNs> before{0};  // in all, until the last time it took something
  std::atomic<TimeNs> since{0};   // it does not now; 0: it does

  TimeNs ns(TimeNs now, TimeNs engine_end) const {
    const TimeNs at = since.load(std::memory_order_relaxed);
    return before.load(std::memory_order_relaxed) +
           (at ? std::max<TimeNs>(0, now - std::max(at, engine_end)) : 0);
  }
};

// A request that the engine works on. Immutable but for what its streams tell, and `blocked`.
struct RunningRequest {
  RequestAccount head;  // what is known at submission; choices hold the spans before it
  std::vector<std::shared_ptr<const RequestProgress>> choices;  // by choice
  Blocked blocked;
};

class RequestLog {
 public:
  static constexpr size_t kRequests = 1000;
  static constexpr size_t kTokensOfRequest = 4096;    // the first of all its choices together
  static constexpr size_t kTokens = size_t{1} << 20;  // of all requests (20 MiB); the oldest give way

  RequestLog();
  AnomalyWatch& anomalies() { return anomalies_; }
  const AnomalyWatch& anomalies() const { return anomalies_; }

  // Hears of every account as it is finished, on the thread that finishes it. Before the first begin().
  using Listener = std::function<void(const std::shared_ptr<const RequestAccount>&)>;
  void listen(Listener listener) { listener_ = std::move(listener); }

  void begin(std::shared_ptr<const RunningRequest> request);
  // `running` is what begin() was given. Adds the spans to the meters.
  void finish(const RunningRequest* running, RequestAccount account, TokenLists tokens);
  // Of a request that the engine did not take.
  void refuse(RequestAccount account) const;

  // A finished request. `tokens` null: they gave way to those of newer requests.
  struct Kept {
    std::shared_ptr<const RequestAccount> account;
    std::shared_ptr<const TokenLists> tokens;
  };
  // Of either id, the newest of that name. `tenant`: only what that one asked for; 0: all.
  std::optional<Kept> find(std::string_view id, uint32_t tenant = 0) const;
  std::shared_ptr<const RunningRequest> find_running(std::string_view id, uint32_t tenant = 0) const;
  // Newest first.
  std::vector<Kept> recent(size_t count, uint32_t tenant = 0) const;

 private:
  std::array<Counter*, kSpans> span_time_{};
  AnomalyWatch anomalies_;
  Listener listener_;
  mutable std::mutex mutex_;
  // Guarded by mutex_, which is held for moving pointers only.
  std::deque<Kept> kept_;           // oldest first
  std::deque<size_t> tokens_held_;  // of each
  size_t tokens_ = 0;
  std::vector<std::shared_ptr<const RunningRequest>> running_;
};

}  // namespace sluice
