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

// The job at hand in one word, so that a worker can join it in one step: the epoch of `start` that announced
// it, whether all must take part, whether it may still be joined, and how many have joined.
namespace job {
constexpr uint64_t kAll = 1u << 31, kOpen = 1u << 30, kJoined = kOpen - 1;
constexpr uint64_t make(uint32_t epoch, uint64_t kind) { return uint64_t(epoch) << 32 | kind; }
constexpr uint32_t epoch(uint64_t job) { return uint32_t(job >> 32); }
}  // namespace job

struct Team::State {
  int size = 1;
  Gate start, done, met;
  alignas(64) std::atomic<uint64_t> job{0};
  alignas(64) std::atomic<int> remaining{0};  // workers still in a job for all
  alignas(64) std::atomic<int> arrived{0};    // members at the barrier
  alignas(64) std::atomic<int> next_task{0};
  // Written by the caller while no worker has joined, read by workers once they have.
  alignas(64) Erased f = nullptr;  // null in a job for all: leave
  const void* ctx = nullptr;
  int tasks = 0;
  std::vector<std::thread> workers;

  void announce(Erased with, const void* on, uint64_t kind) {
    f = with;
    ctx = on;
    job.store(job::make(start.value() + 1, kind), std::memory_order_release);
    start.advance();
  }

  void take_tasks(int member) {
    for (int i; (i = next_task.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(ctx, i, member);
  }

  // Joins the open job of this epoch, if there still is one.
  bool join(uint32_t epoch) {
    uint64_t j = job.load(std::memory_order_acquire);
    do {
      if (job::epoch(j) != epoch || !(j & job::kOpen)) return false;
    } while (!job.compare_exchange_weak(j, j + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    return true;
  }

  void work(int member) {
    for (uint32_t seen = 0;;) {
      start.wait_while(seen);
      seen = start.value();  // jobs that were closed meanwhile are skipped
      const uint64_t j = job.load(std::memory_order_acquire);
      if (job::epoch(j) == seen && (j & job::kAll)) {
        if (f == nullptr) return;
        f(ctx, member, size);
        if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) done.advance();
      } else if (join(seen)) {
        take_tasks(member);
        const uint64_t before = job.fetch_sub(1, std::memory_order_acq_rel);
        if ((before & job::kJoined) == 1 && !(before & job::kOpen)) done.advance();
      }
    }
  }
};

Team::Team(int threads) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1);
  state_->size = threads;
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([s = state_.get(), i] { s->work(i); });
    pthread_setname_np(state_->workers.back().native_handle(), ("sluice-cpu-" + std::to_string(i)).c_str());
  }
}

Team::~Team() {
  state_->announce(nullptr, nullptr, job::kAll);
  for (std::thread& t : state_->workers) t.join();
}

int Team::size() const { return state_->size; }

void Team::run_erased(Erased f, const void* ctx) {
  State& s = *state_;
  if (s.size == 1) return f(ctx, 0, 1);
  const uint32_t finished = s.done.value();
  s.remaining.store(s.size - 1, std::memory_order_relaxed);
  s.announce(f, ctx, job::kAll);
  f(ctx, 0, s.size);
  s.done.wait_while(finished);
}

void Team::run_tasks_erased(Erased f, const void* ctx, int count) {
  State& s = *state_;
  if (s.size == 1 || count == 1) {
    for (int i = 0; i < count; ++i) f(ctx, i, 0);
    return;
  }
  const uint32_t finished = s.done.value();
  s.tasks = count;
  s.next_task.store(0, std::memory_order_relaxed);
  s.announce(f, ctx, job::kOpen);
  s.take_tasks(0);
  // Nobody joins from here on; who has joined is waited for.
  const uint64_t before = s.job.fetch_and(~job::kOpen, std::memory_order_acq_rel);
  if (before & job::kJoined) s.done.wait_while(finished);
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
