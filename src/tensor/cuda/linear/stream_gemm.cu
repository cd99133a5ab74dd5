#include "tensor/cuda/linear/stream_gemm.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/linear/stream_kernel.h"

namespace sluice::cuda {
namespace {

constexpr int kMaxRows = 32;

struct Instance {
  int rows, depth;
  StreamKernel kernel;
};
template <int kRows, int kBoxes>
Instance instance() {
  using S = Shape<Factors::bf16, kRows, kBoxes>;
  return {S::kRows, S::kDepth, stream_gemm_kernel<S>};
}
std::span<const Instance> instances();

const Instance* find(const StreamConfig& c) {
  for (const Instance& i : instances())
    if (i.rows == c.rows && i.depth == c.depth) return &i;
  return nullptr;
}

}  // namespace

bool stream_gemm_supports(const StreamConfig& c) {
  return find(c) && c.tile > 0 && c.tile % 8 == 0 && c.tile <= stream_tile(c.rows) && c.stages >= 2 &&
         c.stages <= kMaxStreamStages && stream_shared_bytes(c) <= kMaxSharedBytes;
}
bool stream_gemm_supports(const LinearArgs& a) {
  return a.x.rows > 0 && a.x.rows <= kMaxRows && a.x.cols % 8 == 0 && a.x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32);
}

void stream_gemm_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
}

size_t stream_gemm_workspace_bytes(int multiprocessors) {
  return kMaxTiles * sizeof(int) + size_t(multiprocessors) * 2 * kMostStreamSums * sizeof(float);
}

void stream_gemm(const Context& context, const LinearArgs& a, const void* weights, const StreamConfig& config,
                 void* workspace) {
  const Instance* instance = find(config);
  const int64_t m = a.x.rows, n = a.out.cols, k = a.x.cols;
  CHECK(instance && stream_gemm_supports(config) && stream_gemm_supports(a));
  CHECK(m <= config.rows && a.out.rows == m && a.w.rows == n && a.w.cols == k);
  const int64_t tiles = (n + config.tile - 1) / config.tile, tile_units = (k + config.depth - 1) / config.depth;
  CHECK(tiles <= kMaxTiles && tiles * tile_units < int64_t(1) << 31);

  Job job{};
  job.out = a.out.data;
  job.out_stride = a.out.stride;
  job.bias = a.bias;
  job.arrived = static_cast<int*>(workspace);
  job.parts = reinterpret_cast<float*>(job.arrived + kMaxTiles);
  job.m = int(m);
  job.n = int(n);
  job.tile = config.tile;
  job.tile_units = int(tile_units);
  job.units = int(tiles * tile_units);
  job.share_step = config.whole_tiles ? job.tile_units : 1;
  job.shares = job.units / job.share_step;
  job.stages = config.stages;
  job.early_stages = config.early_stages;
  job.f32 = a.out.dtype == DType::f32;
  constexpr int kBox = 64;
  const int boxes = config.depth / kBox;
  CHECK(boxes == 1 || k % kBox == 0);
  const auto map = [&](const void* data, int64_t rows, int64_t stride, int box_rows) {
    return boxes == 1 ? tensor_map_bf16(data, rows, k, stride, box_rows, kBox, 128, 128)
                      : tensor_map_bf16_boxes(data, rows, k, stride, box_rows, boxes, 128);
  };
  const int64_t blocks = std::min(job.shares, context.multiprocessors);
  CHECK(blocks * job.shares < int64_t(1) << 31);
  launch(context, instance->kernel, dim3(unsigned(blocks)), dim3(Shape<Factors::bf16, kMaxRows, 1>::kThreads),
         size_t(stream_shared_bytes(config)), map(weights, n, k, config.tile),
         map(a.x.data, m, a.x.stride, config.rows), job);
}

namespace {

// What exists: x's rows, boxes of 64 columns per stage.
std::span<const Instance> instances() {
  static const Instance list[] = {
      instance<8, 1>(),  instance<8, 2>(),  instance<8, 4>(),  instance<16, 1>(), instance<16, 2>(),
      instance<16, 4>(), instance<32, 1>(), instance<32, 2>(), instance<32, 4>(),
  };
  return list;
}

}  // namespace
}  // namespace sluice::cuda
