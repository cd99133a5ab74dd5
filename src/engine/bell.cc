#include "engine/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace sluice {

void Bell::ring() {
  // Both sequentially consistent: either this sees the sleeper, or the sleeper's futex call sees the new count.
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Bell::wait(uint32_t heard, TimeNs until) {
  timespec limit{};
  if (until) {
    const TimeNs left = until - now_ns();
    if (left <= 0) return;
    limit = {.tv_sec = time_t(left / 1'000'000'000), .tv_nsec = long(left % 1'000'000'000)};
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (count_.load(std::memory_order_seq_cst) == heard) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), FUTEX_WAIT_PRIVATE, heard,
            until ? &limit : nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace sluice
