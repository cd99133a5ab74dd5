// Large zeroed memory, and what the machine says about itself.
#pragma once

#include <cstddef>
#include <string>

namespace sluice::cpu {

// Zero-filled, aligned to 64 bytes at least; from kHugeBytes on straight from the kernel, on huge pages where
// it has them. Null when there is none. Freed with the same size.
inline constexpr size_t kHugeBytes = size_t(4) << 20;
void* allocate_zeroed(size_t bytes);
void release(void* data, size_t bytes);

// Memory that may still be taken: what the kernel calls available, and no more than the cgroup's limit leaves.
size_t available_memory_bytes();
std::string cpu_name();

}  // namespace sluice::cpu
