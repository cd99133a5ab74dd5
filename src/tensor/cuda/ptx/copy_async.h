// Copies to shared memory that run beside the thread that issued them (Ampere's kind: by threads, in groups).
// PTX ISA 9.0, section "cp.async".
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

// 16 bytes; where `wanted` is false, zeros, and `from` is not read.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}
// Ends this thread's group of copies.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's groups are not yet done.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace sluice::cuda::ptx
