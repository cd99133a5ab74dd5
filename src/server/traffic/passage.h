// A request that a pool took: tells the pool's breaker, and the comparison with the canary, how it ended.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "server/traffic/canary.h"
#include "server/traffic/circuit_breaker.h"

namespace sluice {

// What is known of a pool: the model that serves, or the canary. Any thread.
struct PoolHealth {
  explicit PoolHealth(Pool which, std::shared_ptr<Canary> compared);
  void show();  // its breaker's state in the meters, when they are read
  // Another one stands in its place: what passed before says nothing of it.
  void start_over();

  const Pool pool;
  const std::shared_ptr<Canary> canary;
  CircuitBreaker breaker;
  std::atomic<int> number{0};  // of those that have stood there
};

// Move-only. Without a word it ends as that of a client who left: it says nothing of the pool. With its end the
// place goes that Canary::enter has given, if it has.
class Passage {
 public:
  Passage() = default;
  Passage(std::shared_ptr<PoolHealth> health, CircuitBreaker::Pass pass, bool has_place = false)
      : health_(std::move(health)), pass_(pass), has_place_(has_place), number_(health_->number.load()) {}
  Passage(Passage&& other) noexcept
      : health_(std::move(other.health_)),
        pass_(other.pass_),
        has_place_(other.has_place_),
        number_(other.number_) {}
  Passage& operator=(Passage&& other) noexcept;
  ~Passage() { abandon(); }

  void ended(const Outcome& outcome, TimeNs now);
  void abandon();
  explicit operator bool() const { return health_ != nullptr; }
  bool has_place() const { return has_place_; }

 private:
  bool is_past() const { return number_ != health_->number.load(); }
  void leave();

  std::shared_ptr<PoolHealth> health_;
  CircuitBreaker::Pass pass_ = CircuitBreaker::Pass::ordinary;
  bool has_place_ = false;
  int number_ = 0;
};

}  // namespace sluice
