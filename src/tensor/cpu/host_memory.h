// Large zeroed memory, and what the machine says about itself.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/check.h"

namespace sluice::cpu {

// Zero-filled, aligned to 64 bytes at least; from kHugeBytes on straight from the kernel, on huge pages where
// it has them. Null when there is none. Freed with the same size.
inline constexpr size_t kHugeBytes = size_t(4) << 20;
void* allocate_zeroed(size_t bytes);
void release(void* data, size_t bytes);

// Scratch of `size` zero elements; pages that are never used cost nothing. T is plain data.
template <typename T>
class ZeroedArray {
 public:
  ZeroedArray() = default;
  explicit ZeroedArray(size_t size) : data_(static_cast<T*>(allocate_zeroed(size * sizeof(T)))), size_(size) {
    CHECK(data_ != nullptr, "out of memory");
  }
  ZeroedArray(ZeroedArray&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  ZeroedArray& operator=(ZeroedArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~ZeroedArray() {
    if (data_) release(data_, size_ * sizeof(T));
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Memory that may still be taken: what the kernel calls available, and no more than the cgroup's limit leaves.
size_t available_memory_bytes();
std::string cpu_name();

}  // namespace sluice::cpu
