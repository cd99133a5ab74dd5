// What is left to do behind products of eight-bit factors that cuBLASLt computed.
#pragma once

#include "tensor/cuda/device/context.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// out[m][n] = sums[m][n] * x_scales[m] * w_scales[n] (+ bias[n]): sums [M, N], dense, int32_t or float. out is
// bf16 or f32.
template <typename Sum>
void scale_sums(const Context& context, const Sum* sums, const float* x_scales, const float* w_scales,
                const float* bias, const Tensor& out);
// out[m][n] += bias[n]; bf16 or f32.
void add_bias(const Context& context, const float* bias, const Tensor& out);

}  // namespace sluice::cuda
