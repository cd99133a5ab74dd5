// Products of rows that are grouped by expert with each expert's own matrix, in one launch.
#pragma once

#include <cuda_bf16.h>

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/experts/routing.h"

namespace sluice::cuda {

// Passed by value with each launch, so that a recorded step holds them.
struct ExpertPointers {
  const __nv_bfloat16* at[kMaxExperts];
};

// out[p, n] = x[p or rows[p], k] · w_e[n, k]ᵀ for each place p of expert e. `rows`: null, or [places] the rows
// of x. n and k are multiples of 8, rows 16-byte aligned.
struct GroupedGemm {
  Tensor x;
  const int32_t* rows;
  ExpertPointers weights;
  Tensor out;
  const int32_t* starts;
  int experts, choices;
};

void grouped_gemm_prepare();  // once, before any capture
void grouped_gemm(const Context& context, const GroupedGemm& a);

}  // namespace sluice::cuda
