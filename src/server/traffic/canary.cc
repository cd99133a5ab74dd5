#include "server/traffic/canary.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/meter.h"

namespace sluice {

namespace {

struct Meters {
  Gauge& percent = meter::gauge("sluice_canary_percent", "Share of requests that the canary gets by weight.");
  Counter& rollbacks =
      meter::counter("sluice_canary_rollbacks_total", "Canaries that were worse than the rest.");
};

Meters& meters() {
  static Meters m;
  return m;
}

// Shares: a twentieth is what matters. Times: a factor of 1.3.
constexpr double kTauOfShares = 0.05, kTauOfLogs = 0.26;

}  // namespace

// Its series are there from the first scrape on.
Canary::Canary() { meters(); }

void Canary::configure(const CanarySettings& settings, bool present, bool times) {
  std::lock_guard lock(mutex_);
  settings_ = settings;
  times_ = times;
  steps_.clear();
  for (const std::string& step : settings.steps) steps_.push_back(std::stod(step));
  step_ = 0;
  answered_ = 0;
  stable_ = canary_ = {};
  verdict_ = "";
  rolled_back_.store(false);
  most_in_flight_.store(settings.max_in_flight);
  percent_.store(steps_.empty() || !present ? 0 : steps_[0]);
  meters().percent.set(percent_.load());
}

Pool Canary::choose(Wish wish, uint64_t sticky) const {
  if (wish == Wish::always) return Pool::canary;
  if (wish == Wish::never || rolled_back()) return Pool::stable;
  if (wish == Wish::canary) return Pool::canary;
  return double(sticky % 10000) < percent() * 100 ? Pool::canary : Pool::stable;
}

bool Canary::enter() {
  if (in_flight_.fetch_add(1, std::memory_order_relaxed) < most_in_flight_.load(std::memory_order_relaxed))
    return true;
  leave();
  return false;
}

void Canary::ended(Pool pool, const Outcome& outcome) {
  std::lock_guard lock(mutex_);
  Seen& seen = pool == Pool::stable ? stable_ : canary_;
  seen.failed.add(outcome.failed);
  if (!outcome.failed) {
    seen.anomalous.add(outcome.anomalous);
    if (outcome.first_token_ms > 0) seen.log_first_token.add(std::log(outcome.first_token_ms));
    if (outcome.tokens_per_second > 0) seen.log_pace.add(-std::log(outcome.tokens_per_second));
  }
  if (pool == Pool::stable || rolled_back()) return;
  if (const char* worse = worse_in()) {
    verdict_ = worse;
    rolled_back_.store(true);
    percent_.store(0);
    meters().percent.set(0);
    meters().rollbacks.add();
    LOG(warn, "canary: rolled back at {} % of requests: it is worse in {}", steps_.empty() ? 0 : steps_[step_],
        worse);
    return;
  }
  if (++answered_ < settings_.step_requests || step_ + 1 >= steps_.size()) return;
  answered_ = 0;
  stable_ = canary_ = {};
  percent_.store(steps_[++step_]);
  meters().percent.set(percent_.load());
  LOG(info, "canary: no worse so far, it now gets {} % of requests", steps_[step_]);
}

const char* Canary::worse_in() const {
  const double alpha =
      settings_.alpha / double(4 * std::max<size_t>(1, steps_.size()));  // four questions a step
  const double slower = std::log(settings_.slower);
  const WorseThan shares{settings_.more_errors, kTauOfShares, alpha}, times{slower, kTauOfLogs, alpha};
  if (is_above(stable_.failed, canary_.failed, shares)) return "errors";
  if (is_above(stable_.anomalous, canary_.anomalous, shares)) return "anomalies";
  if (!times_) return nullptr;
  if (is_above(stable_.log_first_token, canary_.log_first_token, times)) return "time to first token";
  if (is_above(stable_.log_pace, canary_.log_pace, times)) return "tokens a second";
  return nullptr;
}

std::string Canary::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

}  // namespace sluice
