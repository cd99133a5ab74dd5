// What a thread may allocate and compute while it runs code that hostile input can make expensive and that has
// no way to be interrupted (grammar compilers). Inside the scope operator new throws BudgetExhausted once the
// memory held, or the thread's CPU time, is over the limit. Code that loops without allocating is not stopped;
// so the limit is honest where work comes with containers that grow, and checked by tests on the worst inputs.
//
// A program that links this has its operator new and delete (malloc and free beneath; outside a scope they add
// the reading of one thread-local word).
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/clock.h"

namespace sluice {

// Thrown by operator new. Bad code may swallow it: ask AllocationBudget::exhausted().
struct BudgetExhausted : std::bad_alloc {
  const char* what() const noexcept override { return "over the limit of memory or time"; }
};

class AllocationBudget {
 public:
  enum class Limit : uint8_t { none, memory, time };

  // Scopes do not nest. `bytes`: allocated less freed, at most; `cpu_ns`: of this thread, from now on.
  AllocationBudget(int64_t bytes, TimeNs cpu_ns);
  ~AllocationBudget();
  AllocationBudget(const AllocationBudget&) = delete;
  AllocationBudget& operator=(const AllocationBudget&) = delete;

  Limit exhausted() const { return exhausted_; }
  int64_t held_bytes() const { return held_; }  // allocated less freed in the scope; negative is possible
  TimeNs used_ns() const;

  // For tests: throws at the n-th allocation from now, as if memory had run out there.
  void fail_at(int64_t allocation) { fail_in_ = allocation; }

  // Called by operator new and delete alone.
  void charge(void* block);
  void credit(void* block);

 private:
  void stop(Limit limit);
  const int64_t limit_;
  const TimeNs began_;
  const TimeNs until_;
  int64_t held_ = 0;
  int64_t grace_ = 0;  // after the first throw: what unwinding and error texts may take before the next
  int64_t fail_in_ = 0;
  uint32_t until_look_ = 0;  // allocations before the clock is read again
  Limit exhausted_ = Limit::none;
};

// Of this thread, since it began.
uint64_t thread_allocations();

// Called at every allocation in every thread; for tests that count. Null: nothing.
void set_allocation_hook(void (*hook)());

}  // namespace sluice
