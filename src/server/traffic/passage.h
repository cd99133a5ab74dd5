// A request that a pool took: tells the pool's breaker, and the comparison with the canary, how it ended.
#pragma once

#include <memory>
#include <utility>

#include "server/traffic/canary.h"
#include "server/traffic/circuit_breaker.h"

namespace sluice {

// What is known of a pool: the model here, or the canary's server. Any thread.
struct PoolHealth {
  explicit PoolHealth(Pool which, std::shared_ptr<Canary> compared);
  void show();  // its breaker's state in the meters

  const Pool pool;
  const std::shared_ptr<Canary> canary;
  CircuitBreaker breaker;
};

// Move-only. Without a word it ends as that of a client who left: it says nothing of the pool.
class Passage {
 public:
  Passage() = default;
  Passage(std::shared_ptr<PoolHealth> health, CircuitBreaker::Pass pass)
      : health_(std::move(health)), pass_(pass) {}
  Passage(Passage&& other) noexcept : health_(std::move(other.health_)), pass_(other.pass_) {}
  Passage& operator=(Passage&& other) noexcept;
  ~Passage() { abandon(); }

  void ended(const Outcome& outcome, TimeNs now);
  void abandon();

 private:
  std::shared_ptr<PoolHealth> health_;
  CircuitBreaker::Pass pass_ = CircuitBreaker::Pass::ordinary;
};

}  // namespace sluice
