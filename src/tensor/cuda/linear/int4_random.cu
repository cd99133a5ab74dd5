#include "tensor/cuda/linear/int4_random.h"

#include <cuda_fp16.h>

#include <algorithm>

#include "tensor/cuda/device/launch.h"

namespace sluice::cuda {
namespace {

__device__ __forceinline__ uint32_t mixed(uint64_t v) {  // splitmix64's finalizer
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
  return uint32_t(v >> 32 ^ v);
}

__global__ void __launch_bounds__(256)
    fill_int4(uint32_t* out, uint64_t words, int block_words, int quant_words, uint64_t seed, __half scale) {
  let_next_start();
  wait_for_previous();
  const uint64_t step = uint64_t(gridDim.x) * 256;
  for (uint64_t i = uint64_t(blockIdx.x) * 256 + threadIdx.x; i < words; i += step) {
    const auto in_block = int(i % uint64_t(block_words));
    const __half2 pair = __halves2half2(scale, __float2half(in_block % 2 ? 7 : 8));
    out[i] = in_block < quant_words ? mixed(seed + i * 0x9e3779b97f4a7c15u)
                                    : *reinterpret_cast<const uint32_t*>(&pair);
  }
}

}  // namespace

void int4_random(const Context& context, void* data, const Int4Layout& layout, uint64_t seed, float deviation) {
  constexpr float kSteps = 4.61f;  // the deviation of 0 .. 15, in steps
  const uint64_t words = layout.bytes() / 4;
  if (words == 0) return;
  const auto grid = unsigned(std::min<uint64_t>((words + 255) / 256, uint64_t(context.multiprocessors) * 8));
  launch(context, fill_int4, dim3(grid), dim3(256), 0, static_cast<uint32_t*>(data), words,
         layout.block_bytes() / 4, layout.scales_offset() / 4, seed,
         __float2half(deviation / kSteps * kInt4ScaleUp));
}

}  // namespace sluice::cuda
