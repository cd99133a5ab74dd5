// What a thread sleeps on: a count that rings add to. A sleeper reads the count first, looks for work, and
// sleeps only if the count is still the same; so a ring between looking and sleeping is never slept through.
// Ringing costs one atomic add where nobody sleeps. Used in place of std::atomic::wait for its time limit.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace sluice {

class Bell {
 public:
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  uint32_t sleepers() const { return sleepers_.load(std::memory_order_acquire); }
  void ring();
  // Returns once the count differs from `heard`, or at `until` (0: no limit). May return early.
  void wait(uint32_t heard, TimeNs until = 0);

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace sluice
