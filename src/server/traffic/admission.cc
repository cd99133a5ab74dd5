#include "server/traffic/admission.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/meter.h"

namespace sluice {

namespace {

constexpr TimeNs kSecond = 1'000'000'000;
constexpr int kLongestRetry_s = 60;

struct Meters {
  static Counter& refused(const char* why, Lane lane) {
    return meter::counter("sluice_traffic_refusals_total",
                          "Requests refused with 429: key_rate, lane_rate (a minute's requests or tokens are "
                          "used up), load (too many wait for their first token).",
                          fmt::format("reason=\"{}\",lane=\"{}\"", why, lane_name(lane)));
  }
  static std::array<Counter*, kLanes> by_lane(const char* why) {
    std::array<Counter*, kLanes> all{};
    for (int lane = 0; lane < kLanes; ++lane) all[size_t(lane)] = &refused(why, Lane(lane));
    return all;
  }
  std::array<Counter*, kLanes> key_rate = by_lane("key_rate");
  std::array<Counter*, kLanes> lane_rate = by_lane("lane_rate");
  std::array<Counter*, kLanes> load = by_lane("load");
  Counter& degraded = meter::counter("sluice_traffic_degraded_total",
                                     "Requests whose max_tokens was lowered in place of refusing them.");
  Gauge& limit =
      meter::gauge("sluice_traffic_limit",
                   "Requests that may wait for their first token; 0: no limit (traffic.limit.mode).");
  Gauge& waiting = meter::gauge("sluice_traffic_waiting", "Admitted requests without their first token.");
  Gauge& rate_share = meter::gauge("sluice_traffic_rate_share",
                                   "Share of the configured rates that is granted (traffic.recalibrate).");
};

Meters& meters() {
  static Meters m;
  return m;
}

int whole_seconds(TimeNs wait) { return std::max(1, int((wait + kSecond - 1) / kSecond)); }

RateReading read(const RateBucket& bucket, TimeNs now) {
  return {bucket.per_minute(), bucket.remaining(now), bucket.full_in(now)};
}

// What is used up sooner.
RateReading narrower(const RateReading& a, const RateReading& b) {
  if (a.limit <= 0 || b.limit <= 0) return a.limit > 0 ? a : b;
  return a.remaining <= b.remaining ? a : b;
}

}  // namespace

Permit& Permit::operator=(Permit&& other) noexcept {
  if (this == &other) return *this;
  end();
  admission_ = std::move(other.admission_);
  ask_ = other.ask_;
  began_ = other.began_;
  charged_tokens_ = other.charged_tokens_, generated_tokens_ = other.generated_tokens_;
  max_tokens_ = other.max_tokens_;
  has_place_ = other.has_place_, waits_ = other.waits_;
  return *this;
}

void Permit::first_token(TimeNs now) {
  if (admission_ != nullptr && waits_ && has_place_) admission_->first_token(*this, now);
  waits_ = false;
}

std::optional<Refusal> Permit::take_place(TimeNs now) {
  CHECK(admission_ != nullptr && !has_place_);
  waits_ = true;
  return admission_->take_place(ask_, now, *this);
}

int Permit::retry_after_s() const { return admission_ ? admission_->retry_after_s() : 1; }

void Permit::end() {
  if (admission_ != nullptr) admission_->leave(*this);
  admission_.reset();
}

void Admission::Buckets::set_rates(const RateSettings& settings, double share) {
  requests.set_rate(settings.requests_per_minute * share);
  tokens.set_rate(settings.tokens_per_minute * share);
}

TimeNs Admission::Buckets::take(int wanted_tokens, TimeNs now) {
  const TimeNs requests_wait = requests.take(1, now), tokens_wait = tokens.take(wanted_tokens, now);
  if (requests_wait == 0 && tokens_wait == 0) return 0;
  if (requests_wait == 0) requests.give_back(1);
  if (tokens_wait == 0) tokens.give_back(wanted_tokens);
  return std::max(requests_wait, tokens_wait);
}

void Admission::Buckets::give_back_all(int taken_tokens) {
  requests.give_back(1);
  tokens.give_back(taken_tokens);
}

Admission::Admission(const TrafficSettings& settings, int keys)
    : keys_(size_t(keys) + 1), first_tokens_(settings.limit.window_s * kSecond) {
  configure(settings);
}

void Admission::configure(const TrafficSettings& settings) {
  meters();
  std::lock_guard lock(mutex_);
  if (settings.limit.window_s != settings_.limit.window_s)
    first_tokens_ = LatencyWindow(settings.limit.window_s * kSecond);
  if (settings.limit.mode != settings_.limit.mode) gradient_ = {};
  settings_ = settings;
  lane_share_[size_t(Lane::interactive)].store(1);
  lane_share_[size_t(Lane::standard)].store(settings.limit.standard_share);
  lane_share_[size_t(Lane::batch)].store(settings.limit.batch_share);
  degrade_tokens_.store(settings.degrade.max_tokens);
  degrade_above_.store(settings.degrade.above);
  if (!settings.recalibrate) rate_share_ = 1;
  const int now = limit_.load();
  const int most = std::max(settings.limit.min, settings.limit.max);
  limit_.store(settings.limit.mode == "off" ? 0 : std::clamp(now, settings.limit.min, most));
  set_rates();
}

void Admission::show() const {
  meters().waiting.set(waiting());
  meters().limit.set(limit());
}

void Admission::set_rates() {
  for (Buckets& buckets : keys_) buckets.set_rates(settings_.keys, rate_share_);
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    lanes_[lane].set_rates(settings_.lanes[lane], rate_share_);
  meters().rate_share.set(rate_share_);
}

std::optional<Refusal> Admission::admit(const Ask& ask, TimeNs now, Permit& permit) {
  // Also where no first token comes: of a server that stands still, or stood idle, the last pace says nothing.
  if (is_due(now)) {
    std::lock_guard lock(mutex_);
    if (is_due(now)) measure(now);
  }
  const int tokens = ask.prompt_tokens + ask.answer_tokens;
  if (auto refused = take_rates(ask, tokens, now)) return refused;
  Permit let_in;
  if (ask.waits_here) {
    if (auto refused = take_place(ask, now, let_in)) {
      key(ask.tenant).give_back_all(tokens);
      lanes_[size_t(ask.lane)].give_back_all(tokens);
      return refused;
    }
  }
  let_in.admission_ = shared_from_this();
  let_in.ask_ = ask;
  let_in.charged_tokens_ = tokens;
  permit = std::move(let_in);
  return std::nullopt;
}

std::optional<Refusal> Admission::take_rates(const Ask& ask, int tokens, TimeNs now) {
  Buckets& own = key(ask.tenant);
  Buckets& lane = lanes_[size_t(ask.lane)];
  const TimeNs key_wait = own.take(tokens, now), lane_wait = lane.take(tokens, now);
  if (key_wait == 0 && lane_wait == 0) return std::nullopt;
  if (key_wait == 0) own.give_back_all(tokens);
  if (lane_wait == 0) lane.give_back_all(tokens);
  (key_wait > 0 ? meters().key_rate : meters().lane_rate)[size_t(ask.lane)]->add();
  Refusal refusal;
  refusal.code = "rate_limit_exceeded";
  refusal.own_rate = true;
  refusal.retry_after_s = whole_seconds(std::max(key_wait, lane_wait));
  refusal.message = fmt::format(
      "{} used up its requests or tokens of this minute; there will be enough in {} s.",
      key_wait > 0 ? std::string("This key has") : fmt::format("The lane {} has", lane_name(ask.lane)),
      refusal.retry_after_s);
  return refusal;
}

int Admission::places_of(Lane lane) const {
  return std::max(1, int(limit() * lane_share_[size_t(lane)].load(std::memory_order_relaxed)));
}

std::optional<Refusal> Admission::take_place(const Ask& ask, TimeNs now, Permit& permit) {
  const int before = waiting_.fetch_add(1, std::memory_order_relaxed);
  if (limit() > 0) {
    const int places = places_of(ask.lane);
    if (before >= places) {
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      meters().load[size_t(ask.lane)]->add();
      Refusal refusal;
      refusal.code = "overloaded";
      refusal.message = fmt::format(
          "The server is overloaded: {} requests wait for their first token, and {} ones "
          "are taken up to {}.",
          before, lane_name(ask.lane), places);
      const double pace = std::max(0.1, first_tokens_s());
      refusal.retry_after_s =
          int(std::clamp(std::ceil((before - places + 1) / pace), 1.0, double(kLongestRetry_s)));
      return refusal;
    }
    const int degraded = degrade_tokens_.load(std::memory_order_relaxed);
    if (degraded > 0 && before >= degrade_above_.load(std::memory_order_relaxed) * places) {
      permit.max_tokens_ = degraded;
      meters().degraded.add();
    }
  }
  permit.has_place_ = true;
  permit.began_ = now;
  return std::nullopt;
}

int Admission::retry_after_s() const {
  const double pace = first_tokens_s();
  return pace > 0 ? std::clamp(int(std::ceil(1 / pace)), 1, kLongestRetry_s) : 1;
}

RateReading Admission::requests(uint32_t tenant, Lane lane, TimeNs now) const {
  return narrower(read(key(tenant).requests, now), read(lanes_[size_t(lane)].requests, now));
}

RateReading Admission::tokens(uint32_t tenant, Lane lane, TimeNs now) const {
  return narrower(read(key(tenant).tokens, now), read(lanes_[size_t(lane)].tokens, now));
}

void Admission::first_token(const Permit& permit, TimeNs now) {
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  first_tokens_.add(now, now - permit.began_);
  if (is_due(now)) measure(now);
}

void Admission::leave(Permit& permit) {
  if (permit.has_place_ && permit.waits_) waiting_.fetch_sub(1, std::memory_order_relaxed);
  const int took = permit.ask_.prompt_tokens + permit.generated_tokens_;
  const int unused = permit.charged_tokens_ - (permit.waits_ ? 0 : took);
  key(permit.ask_.tenant).tokens.give_back(unused);
  lanes_[size_t(permit.ask_.lane)].tokens.give_back(unused);
  if (permit.waits_) return;
  std::lock_guard lock(mutex_);
  delivered_tokens_ += took;
}

// A minute, by those who use it: of lanes all, of keys those that have not all of theirs.
double Admission::promised(RateBucket Buckets::*of, TimeNs now) const {
  double by_lanes = 0, by_keys = 0;
  for (const Buckets& lane : lanes_) by_lanes += (lane.*of).per_minute();
  for (const Buckets& own : keys_)
    if ((own.*of).full_in(now) > 0) by_keys += (own.*of).per_minute();
  return std::max(by_lanes, by_keys) / rate_share_;
}

// Of what is promised. Requests or tokens, whichever is kept better: the other is not what clients are held to.
double Admission::delivered_share(const LatencyWindow::Reading& seen, TimeNs now) const {
  const double requests = promised(&Buckets::requests, now), tokens = promised(&Buckets::tokens, now);
  if (requests <= 0 && tokens <= 0) return 1;
  return std::max(requests > 0 ? seen.per_second * 60 / requests : 0,
                  tokens > 0 ? delivered_minute_ / tokens : 0);
}

void Admission::measure(TimeNs now) {
  const auto seen = first_tokens_.read(now);
  first_tokens_s_.store(seen.per_second, std::memory_order_relaxed);
  const LimitSettings& limit = settings_.limit;
  if (limit.mode == "rule") limit_.store(limit_by_rule(limit, seen), std::memory_order_relaxed);
  if (limit.mode == "gradient") limit_.store(gradient_.update(limit, seen.mean_ms, waiting()));

  const TimeNs before = measured_at_.exchange(now, std::memory_order_relaxed);
  if (before == 0) return;
  const double elapsed_s = seconds(now - before);
  delivered_minute_ += 0.1 * (double(delivered_tokens_) * 60 / elapsed_s - delivered_minute_);
  delivered_tokens_ = 0;
  if (!settings_.recalibrate) return;
  const bool slow = seen.p95_ms > limit.target_ms;
  rate_share_ = calibrated(rate_share_, delivered_share(seen, now), slow, elapsed_s);
  set_rates();
}

}  // namespace sluice
