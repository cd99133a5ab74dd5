// Thread block clusters: blocks that run at the same time and reach each other's shared memory. PTX ISA 9.0,
// sections "barrier.cluster", "mapa", and "cp.async.bulk.tensor" with multicast.
#pragma once

#include "tensor/cuda/ptx/barrier.h"

namespace sluice::cuda::ptx {

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;\n" ::: "memory");
}

// Arrives at the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}

// copy_box to the same place in each block of `blocks` (a bit each); each one's own `barrier` hears of its
// bytes.
__device__ __forceinline__ void copy_box_to_cluster(void* to, const CUtensorMap* map, uint64_t* barrier,
                                                    int32_t x, int32_t y, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

}  // namespace sluice::cuda::ptx
