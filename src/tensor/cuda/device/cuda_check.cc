#include "tensor/cuda/device/cuda_check.h"

#include <cstdio>

#include "base/check.h"

namespace sluice::cuda {

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  char text[512];
  std::snprintf(text, sizeof text, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
  check_failed(call, file, line, text);
}

}  // namespace sluice::cuda
