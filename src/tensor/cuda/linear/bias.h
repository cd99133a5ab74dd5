// The bias as cuBLASLt's epilogue wants it beside a bf16 result: bf16 (cublaslt.cc).
#pragma once

#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// bf16[i] = bias[i], i < n, rounded to nearest even; exact for checkpoints that store biases as bf16.
void round_bias(const Context& context, const float* bias, void* bf16, int n);

}  // namespace sluice::cuda
