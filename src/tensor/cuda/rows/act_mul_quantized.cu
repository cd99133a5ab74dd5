// act_mul that writes its output quantized: a row's scale needs all of the row, so a row belongs to one block,
// or where rows are few to a cluster of blocks that tell one another their largest values.
#include <cooperative_groups.h>

#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/activate.h"
#include "tensor/cuda/rows/quantize.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

constexpr int kMostThreads = 512, kMostEach = 8;
static_assert(kMostThreads * kMostEach * kVec >= kMostActMulColumns);
constexpr int kBlockVectors = 128 / kVec;        // of a block of columns with one scale
constexpr unsigned kFewRows = 64, kCluster = 8;  // portable

struct Job {
  const uint4* gate_up;
  int64_t in_stride;  // of vectors, as out_stride
  uint4* out;         // or null
  int64_t out_stride;
  QuantizedRows copy;
  int vectors, vectors_each_block;
};

// The largest of the row's values, which its blocks (one, or a cluster's) have parts of.
__device__ __forceinline__ float most_of_row(float value, float* partial, float* most) {
  value = block_max(value, partial);
  if (gridDim.x == 1) return value;
  const auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) *most = value;
  cluster.sync();
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
    value = max_or_nan(value, *cluster.map_shared_rank(most, rank));
  cluster.sync();  // nobody ends while others read its memory
  return value;
}

template <Activation kActivation, Factors kFactors, int kEach>
__global__ void __launch_bounds__(kMostThreads) act_mul_rows(const Job job) {
  let_next_start();
  __shared__ float partial[kMostThreads / 32];
  __shared__ float most_of_block;
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int begin = int(blockIdx.x) * job.vectors_each_block,
            end = min(begin + job.vectors_each_block, job.vectors);
  const uint4* in = job.gate_up + row * job.in_stride;
  uint4 values[kEach];  // bf16: what is quantized is what would have been written
  float most[kEach], largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = begin + int(threadIdx.x + unsigned(i) * blockDim.x);
    const bool inside = at < end;
    Float8 gate = unpack(inside ? in[at] : uint4{});
    const Float8 up = unpack(inside ? in[job.vectors + at] : uint4{});
#pragma unroll
    for (int e = 0; e < kVec; ++e) gate.v[e] = activate<kActivation>(gate.v[e]) * up.v[e];
    values[i] = pack(gate);
    if (inside && job.out) job.out[row * job.out_stride + at] = values[i];
    gate = unpack(values[i]);
    most[i] = 0;
#pragma unroll
    for (float v : gate.v) most[i] = max_or_nan(most[i], fabsf(v));
    largest = max_or_nan(largest, most[i]);
  }
  RowScale scale{};
  if constexpr (kFactors != Factors::fp8_blocks) {
    scale = RowScale::of<kFactors>(most_of_row(largest, partial, &most_of_block));
    if (blockIdx.x == 0 && threadIdx.x == 0) job.copy.scales[row] = scale.scale;
  }
  auto* copy = static_cast<uint2*>(job.copy.data) + row * job.vectors;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = begin + int(threadIdx.x + unsigned(i) * blockDim.x);
    if constexpr (kFactors == Factors::fp8_blocks) {
#pragma unroll
      for (int step = kBlockVectors / 2; step > 0; step /= 2)
        most[i] = max_or_nan(most[i], __shfl_xor_sync(0xffffffffu, most[i], step));
      scale = RowScale::of<kFactors>(most[i]);
      if (at < end && at % kBlockVectors == 0)
        job.copy.scales[at / kBlockVectors * job.copy.scale_stride + row] = scale.scale;
    }
    if (at >= end) continue;
    const Float8 v = unpack(values[i]);
    const float by = scale.inverse;
    copy[at] = {quantize_four<kFactors>(v.v[0] * by, v.v[1] * by, v.v[2] * by, v.v[3] * by),
                quantize_four<kFactors>(v.v[4] * by, v.v[5] * by, v.v[6] * by, v.v[7] * by)};
  }
}

using Kernel = void (*)(Job);
template <Activation kActivation, Factors kFactors>
Kernel kernel_for(int each) {
  if (each == 1) return act_mul_rows<kActivation, kFactors, 1>;
  return each <= 4 ? act_mul_rows<kActivation, kFactors, 4> : act_mul_rows<kActivation, kFactors, kMostEach>;
}
template <Activation kActivation>
Kernel kernel_for(Factors factors, int each) {
  if (factors == Factors::fp8) return kernel_for<kActivation, Factors::fp8>(each);
  if (factors == Factors::fp8_blocks) return kernel_for<kActivation, Factors::fp8_blocks>(each);
  return kernel_for<kActivation, Factors::int8>(each);
}

int round_up(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace

void act_mul_quantized(const Context& context, const ActMulArgs& a, const QuantizedRows& copy,
                       bool out_wanted) {
  check_vectors(a.gate_up), check_vectors(a.out);
  CHECK(a.gate_up.rows == a.out.rows && a.gate_up.cols == 2 * a.out.cols && a.out.rows <= 65535);
  CHECK(copy.rows == a.out.rows && copy.cols == a.out.cols && copy.factors != Factors::bf16);
  if (a.out.rows == 0) return;
  Job job{a.gate_up.row<uint4>(0),
          a.gate_up.stride / kVec,
          out_wanted ? a.out.row<uint4>(0) : nullptr,
          a.out.stride / kVec,
          copy,
          int(a.out.cols / kVec),
          0};
  const bool few = a.out.rows <= kFewRows && job.vectors >= int(kCluster) * kBlockVectors;
  const unsigned blocks = few ? kCluster : 1;
  job.vectors_each_block = round_up((job.vectors + int(blocks) - 1) / int(blocks), kBlockVectors);
  const int each = (job.vectors_each_block + kMostThreads - 1) / kMostThreads;
  CHECK(a.out.cols <= kMostActMulColumns);
  const int threads = round_up((job.vectors_each_block + each - 1) / each, 32);
  const Kernel kernel = a.activation == Activation::silu
                            ? kernel_for<Activation::silu>(copy.factors, each)
                            : kernel_for<Activation::gelu_tanh>(copy.factors, each);
  launch_clusters(context, kernel, blocks, dim3(blocks, unsigned(a.out.rows)), dim3(unsigned(threads)), 0, job);
}

}  // namespace sluice::cuda
