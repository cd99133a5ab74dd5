// The activations of gated feed-forwards, in float32.
#pragma once

#include "tensor/backend.h"

namespace sluice::cuda {

template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == Activation::silu) return __fdividef(x, 1 + __expf(-x));
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u))
  const float twice_inner = 1.5957691216f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1 + __expf(-twice_inner));
}

}  // namespace sluice::cuda
