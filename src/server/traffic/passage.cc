#include "server/traffic/passage.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/meter.h"

namespace sluice {

namespace {

std::string label(Pool pool) { return fmt::format("pool=\"{}\"", pool_name(pool)); }

Gauge& state_of(Pool pool) {
  return meter::gauge("sluice_breaker_state", "Of the circuit breaker: 0 closed, 1 open, 2 half-open.",
                      label(pool));
}
Counter& openings_of(Pool pool) {
  return meter::counter("sluice_breaker_openings_total", "Times that the circuit breaker opened.", label(pool));
}
Counter& requests_of(Pool pool) {
  return meter::counter("sluice_pool_requests_total", "Requests that the pool took.", label(pool));
}

struct Meters {
  Gauge* state[2] = {&state_of(Pool::stable), &state_of(Pool::canary)};
  Counter* openings[2] = {&openings_of(Pool::stable), &openings_of(Pool::canary)};
  Counter* requests[2] = {&requests_of(Pool::stable), &requests_of(Pool::canary)};
};

Meters& meters() {
  static Meters m;
  return m;
}

}  // namespace

PoolHealth::PoolHealth(Pool which, std::shared_ptr<Canary> compared)
    : pool(which), canary(std::move(compared)) {
  meters();
}

void PoolHealth::show() { meters().state[size_t(pool)]->set(double(breaker.state())); }

void PoolHealth::start_over() {
  number.fetch_add(1);
  breaker.start_over();
}

Passage& Passage::operator=(Passage&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  health_ = std::move(other.health_);
  pass_ = other.pass_;
  has_place_ = other.has_place_;
  number_ = other.number_;
  return *this;
}

void Passage::ended(const Outcome& outcome, TimeNs now) {
  if (health_ == nullptr) return;
  const size_t pool = size_t(health_->pool);
  meters().requests[pool]->add();
  if (is_past()) return leave();
  health_->canary->ended(health_->pool, outcome);
  if (!outcome.failed) {
    if (pass_ == CircuitBreaker::Pass::probe)
      LOG(info, "circuit breaker of {}: closed, a probe succeeded", pool_name(health_->pool));
    health_->breaker.succeeded(pass_);
  } else if (health_->breaker.failed(pass_, now)) {
    meters().openings[pool]->add();
    LOG(warn, "circuit breaker of {}: open, too many requests failed", pool_name(health_->pool));
  }
  leave();
}

void Passage::abandon() {
  if (health_ == nullptr) return;
  if (!is_past()) health_->breaker.abandoned(pass_);
  leave();
}

void Passage::leave() {
  if (has_place_) health_->canary->leave();
  health_.reset();
}

}  // namespace sluice
