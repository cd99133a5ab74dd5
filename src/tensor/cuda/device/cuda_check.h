// CUDA_CHECK(call): a CUDA error after start is a bug or a lost card; the process ends with the call, CUDA's
// words and the engine's last step records (base/check.h), and never hangs.
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::cuda {
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);
}  // namespace sluice::cuda

#define CUDA_CHECK(call)                                                                 \
  do {                                                                                   \
    if (const cudaError_t cuda_error_ = (call); cuda_error_ != cudaSuccess) [[unlikely]] \
      ::sluice::cuda::cuda_failed(cuda_error_, #call, __FILE__, __LINE__);               \
  } while (0)
