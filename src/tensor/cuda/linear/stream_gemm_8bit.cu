#include "tensor/cuda/linear/stream_gemm_8bit.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensor/cuda/device/tensor_map.h"
#include "tensor/cuda/linear/stream_kernel.h"

namespace sluice::cuda {
namespace {

constexpr int kBox = 128;

struct Instance {
  Factors factors;
  int rows, depth, threads;
  StreamKernel kernel;
};
template <Factors kFactors, int kRows, int kBoxes>
Instance instance() {
  using S = Shape<kFactors, kRows, kBoxes>;
  return {kFactors, S::kRows, S::kDepth, S::kThreads, stream_gemm_kernel<S>};
}
std::span<const Instance> instances();

const Instance* find(const StreamConfig& c) {
  for (const Instance& i : instances())
    if (i.factors == c.factors && i.rows == c.rows && i.depth == c.depth) return &i;
  return nullptr;
}

}  // namespace

bool stream_gemm_8bit_supports(const StreamConfig& c) {
  return find(c) && c.tile > 0 && c.tile % 8 == 0 && c.tile <= stream_tile(c.rows) && c.stages >= 2 &&
         c.stages <= kMaxStreamStages && stream_shared_bytes(c) <= kMaxSharedBytes;
}

void stream_gemm_8bit_prepare() {
  for (const Instance& i : instances())
    CUDA_CHECK(cudaFuncSetAttribute(i.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
}

void stream_gemm_8bit(const Context& context, const QuantizedProduct& p, const StreamConfig& config,
                      void* workspace) {
  const Instance* instance = find(config);
  const int64_t m = p.x.rows, n = p.w.rows, k = p.w.cols;
  CHECK(instance && stream_gemm_8bit_supports(config) && p.x.factors == config.factors);
  CHECK(m > 0 && m <= config.rows && p.x.cols == k && k % 16 == 0 && p.out.rows == m && p.out.cols == n);
  CHECK(p.out.dtype == DType::bf16 || p.out.dtype == DType::f32);
  const int64_t tiles = (n + config.tile - 1) / config.tile, tile_units = (k + config.depth - 1) / config.depth;
  CHECK(tiles <= kMaxTiles && tiles * tile_units < int64_t(1) << 31);

  Job job{};
  job.out = p.out.data;
  job.out_stride = p.out.stride;
  job.bias = p.bias;
  job.w_scales = p.w.scales;
  job.x_scales = p.x.scales;
  job.w_scale_stride = int(p.w.scale_stride);
  job.x_scale_stride = int(p.x.scale_stride);
  job.arrived = static_cast<int*>(workspace);
  job.parts = reinterpret_cast<float*>(job.arrived + kMaxTiles);
  job.m = int(m);
  job.n = int(n);
  job.boxes = int((k + kBox - 1) / kBox);
  job.tile = config.tile;
  job.tile_units = int(tile_units);
  job.units = int(tiles * tile_units);
  job.share_step = config.whole_tiles ? job.tile_units : 1;
  job.shares = job.units / job.share_step;
  job.stages = config.stages;
  job.early_stages = config.early_stages;
  job.f32 = p.out.dtype == DType::f32;
  const int boxes = config.depth / kBox;
  CHECK(boxes == 1 || k % kBox == 0);
  const auto map = [&](const void* data, int64_t rows, int box_rows) {
    return boxes == 1 ? tensor_map_bytes(data, rows, k, box_rows)
                      : tensor_map_bytes_boxes(data, rows, k, box_rows, boxes);
  };
  const int64_t blocks = std::min(job.shares, context.multiprocessors);
  CHECK(blocks * job.shares < int64_t(1) << 31);
  launch(context, instance->kernel, dim3(unsigned(blocks)), dim3(unsigned(instance->threads)),
         size_t(stream_shared_bytes(config)), map(p.w.data, n, config.tile), map(p.x.data, m, config.rows),
         job);
}

namespace {

template <Factors kFactors>
auto instances_of() {
  return std::array{instance<kFactors, 8, 1>(),  instance<kFactors, 8, 2>(),  instance<kFactors, 8, 4>(),
                    instance<kFactors, 16, 1>(), instance<kFactors, 16, 2>(), instance<kFactors, 16, 4>(),
                    instance<kFactors, 32, 1>(), instance<kFactors, 32, 2>(), instance<kFactors, 32, 4>()};
}

// What exists: factors, x's rows, boxes of 128 columns per stage.
std::span<const Instance> instances() {
  static const std::vector<Instance> list = [] {
    std::vector<Instance> all;
    for (const auto& of :
         {instances_of<Factors::fp8>(), instances_of<Factors::fp8_blocks>(), instances_of<Factors::int8>()})
      all.insert(all.end(), of.begin(), of.end());
    for (const Instance& i : {instance<Factors::fp8, 64, 1>(), instance<Factors::fp8, 64, 2>(),
                              instance<Factors::fp8, 128, 1>(), instance<Factors::int8, 64, 1>(),
                              instance<Factors::int8, 64, 2>(), instance<Factors::int8, 128, 1>()})
      all.push_back(i);
    return all;
  }();
  return list;
}

}  // namespace
}  // namespace sluice::cuda
