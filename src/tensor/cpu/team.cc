#include "tensor/cpu/team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace sluice::cpu {
namespace {

// How long a waiter burns its core before it sleeps. Ops of a step follow one another within a few µs; waking a
// sleeper costs 5 to 50 µs, so this much spinning pays within a step and ends soon after it.
constexpr TimeNs kSpinNs = 80'000;
constexpr int kPausesPerClockRead = 32;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A number that only grows, and a place to wait for its growth. Waiters spin, then sleep in the kernel; with
// more threads than cores the spinning is bounded, so whoever is waited for gets its turn.
class alignas(64) Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // Ordered after the store and, in the waiter, before its last look at the value: one of the two sees the
    // other.
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  void wait_while(uint32_t seen) {
    const TimeNs begin = now_ns();
    do {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        if (value() != seen) return;
        pause();
      }
    } while (now_ns() - begin < kSpinNs);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) {
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int32_t> sleepers_{0};
};

}  // namespace

struct Team::State {
  int size = 1;
  Gate start, done, met;
  alignas(64) std::atomic<int> remaining{0};  // workers still in f
  alignas(64) std::atomic<int> arrived{0};    // members at the barrier
  alignas(64) Erased f = nullptr;             // null when started: leave
  const void* ctx = nullptr;
  std::vector<std::thread> workers;

  void work(int member) {
    pthread_setname_np(pthread_self(), ("sluice-cpu-" + std::to_string(member)).c_str());
    for (uint32_t seen = 0;; ++seen) {
      start.wait_while(seen);
      if (f == nullptr) return;
      f(ctx, member, size);
      if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) done.advance();
    }
  }
};

Team::Team(int threads) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1);
  state_->size = threads;
  for (int i = 1; i < threads; ++i) state_->workers.emplace_back([s = state_.get(), i] { s->work(i); });
}

Team::~Team() {
  state_->f = nullptr;
  state_->start.advance();
  for (std::thread& t : state_->workers) t.join();
}

int Team::size() const { return state_->size; }

void Team::run_erased(Erased f, const void* ctx) {
  State& s = *state_;
  if (s.size == 1) return f(ctx, 0, 1);
  const uint32_t finished = s.done.value();
  s.f = f;
  s.ctx = ctx;
  s.remaining.store(s.size - 1, std::memory_order_relaxed);
  s.start.advance();
  f(ctx, 0, s.size);
  s.done.wait_while(finished);
}

void Team::barrier() {
  State& s = *state_;
  if (s.size == 1) return;
  const uint32_t seen = s.met.value();
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == s.size) {
    s.arrived.store(0, std::memory_order_relaxed);
    s.met.advance();
  } else {
    s.met.wait_while(seen);
  }
}

}  // namespace sluice::cpu
