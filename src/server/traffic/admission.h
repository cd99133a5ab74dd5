// Who is let in, of those who have a key: rates by key and by lane, and how many may wait for their first
// token.
//
// Cheap enough for each request: a few atomics to be let in; a lock, held for the length of an addition, when a
// first token or an end is told. Any thread; time is passed in.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "server/traffic/adaptive_limit.h"
#include "server/traffic/rate_bucket.h"
#include "server/traffic/traffic_settings.h"

namespace sluice {

class Admission;

// What a request is charged for when it comes; what it took is settled at its end.
struct Ask {
  uint32_t tenant = 0;  // place of its key, from 1; 0: no keys are asked for
  Lane lane = Lane::standard;
  int prompt_tokens = 0;
  int answer_tokens = 0;  // expected of it, all choices together
  // False: a canary is asked, whose clients are no load of this pool. Rates are charged, no place is taken.
  bool waits_here = true;
};

struct Refusal {
  std::string message;
  const char* code = "";  // of the API: rate_limit_exceeded, overloaded
  int retry_after_s = 1;
  bool own_rate = false;  // its key's or its lane's rate, not the server's load
};

// A request that was let in. Its end is the end of this object; what it did not generate is not charged.
class Permit {
 public:
  Permit() = default;  // of nothing
  Permit(Permit&& other) noexcept { *this = std::move(other); }
  Permit& operator=(Permit&& other) noexcept;
  ~Permit() { end(); }

  explicit operator bool() const { return admission_ != nullptr; }
  void first_token(TimeNs now);
  // Charged in place of what was expected.
  void generated(int tokens) { generated_tokens_ = tokens; }
  void end();
  // The stable pool answers after all what a canary was asked for, whose time is none of this pool's.
  std::optional<Refusal> take_place(TimeNs now);
  int retry_after_s() const;  // Admission's; 1 without one
  // Most tokens of each answer of it; 0: as it asked. Told in X-Sluice-Degraded.
  int max_tokens() const { return max_tokens_; }

 private:
  friend class Admission;
  std::shared_ptr<Admission> admission_;
  Ask ask_;
  TimeNs began_ = 0;
  int charged_tokens_ = 0, generated_tokens_ = 0, max_tokens_ = 0;
  bool has_place_ = false;
  bool waits_ = true;  // for its first token
};

// What rate-limit headers say of the narrower of key and lane.
struct RateReading {
  double limit = 0;  // a minute; 0: there is none
  double remaining = 0;
  TimeNs full_in = 0;
};

class Admission : public std::enable_shared_from_this<Admission> {
 public:
  Admission(const TrafficSettings& settings, int keys);

  // From the next request on; those that were let in stay. One caller at a time.
  void configure(const TrafficSettings& settings);

  // A permit, or why not. retry_after_s is when the rates will have what is asked for, if nobody else of the
  // key or lane takes it; of the limit it is an estimate by the pace of first tokens.
  std::optional<Refusal> admit(const Ask& ask, TimeNs now, Permit& permit);

  RateReading requests(uint32_t tenant, Lane lane, TimeNs now) const;
  RateReading tokens(uint32_t tenant, Lane lane, TimeNs now) const;

  // For answers that are refused behind this: when the queue will have moved by one.
  int retry_after_s() const;
  int waiting() const { return waiting_.load(std::memory_order_relaxed); }
  double first_tokens_s() const { return first_tokens_s_.load(std::memory_order_relaxed); }
  // Places for requests that wait for their first token, all lanes; 0: no limit.
  int limit() const { return limit_.load(std::memory_order_relaxed); }
  // In the meters, when they are read: two threads that each told of what they did could tell it in the wrong
  // order, and who waits would stay wrong until somebody else comes.
  void show() const;

 private:
  friend class Permit;
  struct Buckets {
    RateBucket requests, tokens;
    void set_rates(const RateSettings& settings, double share);
    TimeNs take(int tokens, TimeNs now);  // as RateBucket::take, of both or of none
    void give_back_all(int tokens);
  };

  Buckets& key(uint32_t tenant) { return keys_[tenant < keys_.size() ? tenant : 0]; }
  const Buckets& key(uint32_t tenant) const { return keys_[tenant < keys_.size() ? tenant : 0]; }
  std::optional<Refusal> take_rates(const Ask& ask, int tokens, TimeNs now);
  std::optional<Refusal> take_place(const Ask& ask, TimeNs now, Permit& permit);
  int places_of(Lane lane) const;
  void first_token(const Permit& permit, TimeNs now);
  void leave(Permit& permit);
  bool is_due(TimeNs now) const { return now - measured_at_.load(std::memory_order_relaxed) >= kMeasureEvery; }
  void measure(TimeNs now);                                                      // needs mutex_
  void set_rates();                                                              // needs mutex_
  double promised(RateBucket Buckets::*of, TimeNs now) const;                    // needs mutex_
  double delivered_share(const LatencyWindow::Reading& seen, TimeNs now) const;  // needs mutex_

  static constexpr TimeNs kMeasureEvery = 1'000'000'000;

  std::deque<Buckets> keys_;  // [tenant]
  std::array<Buckets, kLanes> lanes_;
  std::array<std::atomic<double>, kLanes> lane_share_{};
  std::atomic<int> waiting_{0};
  std::atomic<int> limit_{0};
  std::atomic<int> degrade_tokens_{0};
  std::atomic<double> degrade_above_{1};
  std::atomic<double> first_tokens_s_{0};
  std::atomic<TimeNs> measured_at_{0};  // set under mutex_

  mutable std::mutex mutex_;
  TrafficSettings settings_;      // guarded by mutex_
  LatencyWindow first_tokens_;    // guarded by mutex_
  GradientLimit gradient_;        // guarded by mutex_
  int64_t delivered_tokens_ = 0;  // since then; guarded by mutex_
  double delivered_minute_ = 0;   // smoothed; guarded by mutex_
  double rate_share_ = 1;         // of the configured rates; guarded by mutex_
};

}  // namespace sluice
