#include "base/allocation_budget.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>

#include "base/check.h"

namespace sluice {
namespace {

constexpr uint32_t kAllocationsPerLook = 64;  // reading a thread's CPU clock is a system call
constexpr int64_t kGraceBytes = 64 << 10;

thread_local AllocationBudget* current = nullptr;
thread_local uint64_t allocations = 0;
std::atomic<void (*)()> hook{nullptr};

void* allocate(std::size_t size, std::size_t align) {
  if (const auto call = hook.load(std::memory_order_relaxed)) call();
  ++allocations;
  if (size == 0) size = 1;
  void* p = align ? std::aligned_alloc(align, (size + align - 1) / align * align) : std::malloc(size);
  if (!p) throw std::bad_alloc();
  if (current) {
    try {
      current->charge(p);
    } catch (...) {
      std::free(p);
      throw;
    }
  }
  return p;
}
void* try_allocate(std::size_t size, std::size_t align) noexcept {
  try {
    return allocate(size, align);
  } catch (...) {
    return nullptr;
  }
}
void release(void* p) noexcept {
  if (current && p) current->credit(p);
  std::free(p);
}

}  // namespace

AllocationBudget::AllocationBudget(int64_t bytes, TimeNs cpu_ns)
    : limit_(bytes), began_(thread_cpu_ns()), until_(began_ + cpu_ns) {
  CHECK(!current, "budgets do not nest");
  current = this;
}
AllocationBudget::~AllocationBudget() { current = nullptr; }

TimeNs AllocationBudget::used_ns() const { return thread_cpu_ns() - began_; }

void AllocationBudget::charge(void* block) {
  const auto bytes = int64_t(malloc_usable_size(block));
  held_ += bytes;
  if (exhausted_ != Limit::none) {
    if ((grace_ -= bytes) < 0) held_ -= bytes, stop(exhausted_);
    return;
  }
  if (held_ > limit_ || (fail_in_ > 0 && --fail_in_ == 0)) held_ -= bytes, stop(Limit::memory);
  if (until_look_-- == 0) {
    until_look_ = kAllocationsPerLook;
    if (thread_cpu_ns() > until_) held_ -= bytes, stop(Limit::time);
  }
}

void AllocationBudget::credit(void* block) { held_ -= int64_t(malloc_usable_size(block)); }

void AllocationBudget::stop(Limit limit) {
  exhausted_ = limit;
  grace_ = kGraceBytes;
  throw BudgetExhausted();
}

uint64_t thread_allocations() { return allocations; }

void set_allocation_hook(void (*call)()) { hook.store(call); }

}  // namespace sluice

// All forms: where one came from elsewhere (a sanitizer has its own), what it allocates could not be freed
// here.
void* operator new(std::size_t size) { return sluice::allocate(size, 0); }
void* operator new[](std::size_t size) { return sluice::allocate(size, 0); }
void* operator new(std::size_t size, std::align_val_t align) {
  return sluice::allocate(size, std::size_t(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return sluice::allocate(size, std::size_t(align));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return sluice::try_allocate(size, 0); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return sluice::try_allocate(size, 0); }
void* operator new(std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept {
  return sluice::try_allocate(size, std::size_t(align));
}
void* operator new[](std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept {
  return sluice::try_allocate(size, std::size_t(align));
}
void operator delete(void* p) noexcept { sluice::release(p); }
void operator delete[](void* p) noexcept { sluice::release(p); }
void operator delete(void* p, std::size_t) noexcept { sluice::release(p); }
void operator delete[](void* p, std::size_t) noexcept { sluice::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { sluice::release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { sluice::release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { sluice::release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { sluice::release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { sluice::release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { sluice::release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { sluice::release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { sluice::release(p); }
