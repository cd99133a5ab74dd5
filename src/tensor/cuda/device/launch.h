// How every kernel is launched: with programmatic dependent launch, so that a kernel's start (its launch, its
// barriers, its first weights) overlaps the tail of the one before. The rules that make this correct:
//  1. every kernel calls wait_for_previous() in every thread that touches memory which any earlier kernel of
//     the step reads or writes, before the first such access. Before it, only weights (never written after
//     load) may be read (but see 3), and arrays of the batch that were staged before the step's first kernel:
//     no kernel writes them, and the stream waits for the copies. A kernel may not skip it: that all kernels
//     wait is what makes waiting for the one before enough.
//  2. every kernel calls let_next_start() early (at its top, unless that was measured to be worse).
//  3. decode attention calls it only when its own wait is over. Then everything in front of it is done, the
//     step's plans and all earlier steps too, and whatever is launched behind it starts after that. So a kernel
//     behind it in the same step may read before its own wait what these wrote, if nothing later writes it.
// CUDA C++ programming guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, griddepcontrol.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/device/cuda_check.h"

namespace sluice::cuda {

#ifdef __CUDACC__
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif

// Kernels that want more than 48 KB of dynamic shared memory raise their limit once, before any capture
// (cudaFuncSetAttribute in their `prepare`). `cluster` blocks along x share a cluster (more than 8: the kernel
// allows cudaFuncAttributeNonPortableClusterSizeAllowed).
template <typename... Parameters, typename... Arguments>
void launch_clusters(const Context& context, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                     dim3 block, size_t shared_bytes, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  cudaLaunchAttribute attributes[2] = {};
  if (context.overlap_launches) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& size = attributes[config.numAttrs++];
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {cluster, 1, 1};
  }
  config.attrs = attributes;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

template <typename... Parameters, typename... Arguments>
void launch(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments&&... arguments) {
  launch_clusters(context, kernel, 1, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}

}  // namespace sluice::cuda
