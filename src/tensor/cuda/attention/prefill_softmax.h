// The softmax of prefill_wgmma.cu: scores in the registers of a wgmma accumulator become weights, a tile at a
// time. A thread's registers hold parts of two rows: row `lane / 4` of its warp's 16, and 8 further down
// (wgmma.h).
#pragma once

#include <cuda_bf16.h>

#include "tensor/cuda/ptx/wgmma_attention.h"

namespace sluice::cuda::prefill {

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Scores of tokens behind `position` (of this thread's first row; 8 more of its second), or before `position`,
// become -inf. `tile`: position of the tile's first token.
template <bool behind, int n>
__device__ __forceinline__ void mask_scores(float (&scores)[n], int position, int tile) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int limit = position + 8 * r - tile - 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < n / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (behind ? 8 * j + e > limit : 8 * j + e < limit) scores[4 * j + 2 * r + e] = -INFINITY;
      }
    }
  }
}

// tanh(x) = 1 - 2 / (e^2x + 1); `scale` holds the factor 2 / ln 2 and 1 / cap.
template <int n>
__device__ __forceinline__ void cap_scores(float (&scores)[n], float scale) {
#pragma unroll
  for (int i = 0; i < n; ++i) scores[i] = 1 - __fdividef(2, ptx::exp2_approx(scores[i] * scale) + 1);
}

// The running softmax of this thread's two rows; `sum` is of this thread's columns only until the end.
//
// Weights are exponents relative to `base`, a maximum seen before, not always the latest: only where scores
// have outgrown it by a factor of 2^kSlack are sums rescaled (as FlashAttention-4 does). That is exact, since
// numerator and denominator share the base and bf16 has the exponents of float, and it spares nearly all of the
// products by the correction.
constexpr float kSlack = 16;

struct Softmax {
  float base[2] = {-INFINITY, -INFINITY};  // exponent of 2
  float sum[2] = {0, 0};

  // Weights from scores. True (for the warp) where sums so far must be multiplied by `correction`.
  template <int n>
  __device__ __forceinline__ bool update(const float (&scores)[n], float scale, uint32_t (&weights)[n / 8][4],
                                         float (&correction)[2]) {
    bool grown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float part[4];
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        const float pair = fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]);
        part[j % 4] = j < 4 ? pair : fmaxf(part[j % 4], pair);
      }
      float top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale;
      const float old = base[r];
      const bool higher = top > old + kSlack;
      grown |= higher;
      if (higher) base[r] = top;
      const float subtract = base[r] == -INFINITY ? 0 : base[r];  // a row may see nothing of a tile
      correction[r] = ptx::exp2_approx(old - subtract);
      float total[2] = {};
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        const float x = ptx::exp2_approx(scores[4 * j + 2 * r] * scale - subtract);
        const float y = ptx::exp2_approx(scores[4 * j + 2 * r + 1] * scale - subtract);
        total[0] += x;
        total[1] += y;
        weights[j / 2][j % 2 * 2 + r] = bf16_pair(x, y);
      }
      sum[r] = sum[r] * correction[r] + (total[0] + total[1]);
    }
    return __any_sync(~0u, grown);
  }
};

}  // namespace sluice::cuda::prefill
