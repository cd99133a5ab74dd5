// fill_random: eight normal values from two calls of Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011) by Box-Muller. A value is named by (seed, index): the same whatever the grid.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = counter.x * 0xD2511F53u, high0 = __umulhi(counter.x, 0xD2511F53u);
    const uint32_t low1 = counter.z * 0xCD9E8D57u, high1 = __umulhi(counter.z, 0xCD9E8D57u);
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
  }
  return counter;
}

// Two uniform words to two independent normal values. Fast intrinsics: what bf16 keeps is coarser by far.
__device__ __forceinline__ float2 normal_pair(uint32_t a, uint32_t b, float deviation) {
  const float uniform = (float(a) + 0.5f) * 0x1p-32f;  // 2^-33 .. 1
  const float radius = deviation * sqrtf(fmaxf(0, -2 * __logf(uniform))),
              angle = float(b) * (6.283185307f * 0x1p-32f);
  return {radius * __cosf(angle), radius * __sinf(angle)};
}

__device__ __forceinline__ Float8 normal8(uint64_t at, uint2 key, float deviation) {
  Float8 f;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint4 r = philox({uint32_t(at), uint32_t(at >> 32), half, 0}, key);
    const float2 a = normal_pair(r.x, r.y, deviation), b = normal_pair(r.z, r.w, deviation);
    f.v[half * 4] = a.x, f.v[half * 4 + 1] = a.y, f.v[half * 4 + 2] = b.x, f.v[half * 4 + 3] = b.y;
  }
  return f;
}

__global__ void __launch_bounds__(256)
    fill_normal(__nv_bfloat16* out, uint64_t count, uint64_t seed, float deviation) {
  let_next_start();
  wait_for_previous();
  const uint2 key = {uint32_t(seed), uint32_t(seed >> 32)};
  const uint64_t vectors = (count + kVec - 1) / kVec, step = uint64_t(gridDim.x) * 256;
  for (uint64_t at = uint64_t(blockIdx.x) * 256 + threadIdx.x; at < vectors; at += step) {
    const Float8 f = normal8(at, key, deviation);
    if ((at + 1) * kVec <= count) {
      reinterpret_cast<uint4*>(out)[at] = pack(f);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (at * kVec + i < count) out[at * kVec + i] = __float2bfloat16_rn(f.v[i]);
    }
  }
}

}  // namespace

void fill_random(const Context& context, void* bf16, size_t count, uint64_t seed, float deviation) {
  CHECK(reinterpret_cast<uintptr_t>(bf16) % 16 == 0);
  if (count == 0) return;
  const uint64_t wanted = (count + 256 * kVec - 1) / (256 * kVec);
  const uint64_t most = uint64_t(context.multiprocessors) * 8;
  launch(context, fill_normal, dim3(unsigned(wanted < most ? wanted : most)), dim3(256), 0,
         static_cast<__nv_bfloat16*>(bf16), count, seed, deviation);
}

}  // namespace sluice::cuda
