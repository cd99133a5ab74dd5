// Bounded lock-free queues. Both refuse when full; nobody waits inside them.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace sluice {

// Many producers, many consumers. Dmitry Vyukov's bounded queue: each cell carries a sequence number that says
// whose turn it is, so a push or pop is one compare-and-swap on its own end. T must be movable and
// default-constructible.
template <typename T>
class MpmcQueue {
 public:
  explicit MpmcQueue(size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity) - 1), cells_(new Cell[mask_ + 1]) {
    for (size_t i = 0; i <= mask_; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // False when full; `value` is then untouched.
  bool push(T&& value) {
    size_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const auto lag = intptr_t(cell.turn.load(std::memory_order_acquire)) - intptr_t(at);
      if (lag == 0) {
        if (tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
          cell.value = std::move(value);
          cell.turn.store(at + 1, std::memory_order_release);
          return true;
        }
      } else if (lag < 0) {
        return false;
      } else {
        at = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  bool pop(T& out) {
    size_t at = head_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const auto lag = intptr_t(cell.turn.load(std::memory_order_acquire)) - intptr_t(at + 1);
      if (lag == 0) {
        if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
          out = std::move(cell.value);
          cell.value = T();
          cell.turn.store(at + mask_ + 1, std::memory_order_release);
          return true;
        }
      } else if (lag < 0) {
        return false;
      } else {
        at = head_.load(std::memory_order_relaxed);
      }
    }
  }

  size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<size_t> turn;
    T value;
  };
  const size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
};

// One producer, one consumer.
template <typename T>
class SpscRing {
 public:
  explicit SpscRing(size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity) - 1), cells_(new T[mask_ + 1]) {}

  bool push(const T& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) > mask_) return false;
    cells_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool pop(T& out) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (tail_.load(std::memory_order_acquire) == head) return false;
    out = cells_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  size_t size() const { return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire); }
  size_t capacity() const { return mask_ + 1; }

 private:
  const size_t mask_;
  std::unique_ptr<T[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
};

}  // namespace sluice
