// What every op of the CUDA backend is handed: where to enqueue, and the card's numbers.
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::cuda {

struct Context {
  cudaStream_t stream = nullptr;  // the compute stream; also the one that is captured
  int multiprocessors = 0;        // 132 on an H200
  bool overlap_launches = true;   // programmatic dependent launch (launch.h); off to measure what it gives
};

}  // namespace sluice::cuda
