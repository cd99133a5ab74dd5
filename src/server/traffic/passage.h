// A request that a pool took: tells the pool's breaker, and the comparison with the canary, how it ended.
#pragma once

#include <memory>
#include <utility>

#include "server/traffic/canary.h"
#include "server/traffic/circuit_breaker.h"

namespace sluice {

// What is known of a pool: the model that serves, or the canary. Any thread.
struct PoolHealth {
  explicit PoolHealth(Pool which, std::shared_ptr<Canary> compared);
  void show();  // its breaker's state in the meters

  const Pool pool;
  const std::shared_ptr<Canary> canary;
  CircuitBreaker breaker;
};

// Move-only. Without a word it ends as that of a client who left: it says nothing of the pool. With its end the
// place goes that Canary::enter has given, if it has.
class Passage {
 public:
  Passage() = default;
  Passage(std::shared_ptr<PoolHealth> health, CircuitBreaker::Pass pass, bool has_place = false)
      : health_(std::move(health)), pass_(pass), has_place_(has_place) {}
  Passage(Passage&& other) noexcept
      : health_(std::move(other.health_)), pass_(other.pass_), has_place_(other.has_place_) {}
  Passage& operator=(Passage&& other) noexcept;
  ~Passage() { abandon(); }

  void ended(const Outcome& outcome, TimeNs now);
  void abandon();
  explicit operator bool() const { return health_ != nullptr; }
  bool has_place() const { return has_place_; }

 private:
  void leave();

  std::shared_ptr<PoolHealth> health_;
  CircuitBreaker::Pass pass_ = CircuitBreaker::Pass::ordinary;
  bool has_place_ = false;
};

}  // namespace sluice
