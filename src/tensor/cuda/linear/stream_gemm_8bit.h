// The streaming product (stream_gemm.h) of eight-bit factors: out[m, n] = x[m, k] · w[n, k]ᵀ · scales (+ bias),
// m <= 128, k a multiple of 16. The tensor cores multiply the eight bits as they are.
//
// Up to 32 rows it reads w at the memory's pace, in half the time of bf16. 64 and 128 rows (padded) have tiles
// of 128 rows of w and two warpgroups.
#pragma once

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/heuristics.h"
#include "tensor/cuda/rows/quantized_weight.h"

namespace sluice::cuda {

struct QuantizedProduct {
  QuantizedRows x;
  QuantizedWeight w;
  const float* bias = nullptr;  // [n] or null
  Tensor out;                   // [m, n], bf16 or f32
};

bool stream_gemm_8bit_supports(const StreamConfig& config);
// Once, before any capture.
void stream_gemm_8bit_prepare();
// Enqueues the product; `workspace` is stream_gemm's.
void stream_gemm_8bit(const Context& context, const QuantizedProduct& p, const StreamConfig& config,
                      void* workspace);

}  // namespace sluice::cuda
