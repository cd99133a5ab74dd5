#include "tensor/cuda/rows/quantized_rows.h"

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/quantize.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

constexpr int kPiece = 16;                  // columns: 32 bytes in, 16 out
constexpr int kBlockPieces = 128 / kPiece;  // of a block of columns with one scale
constexpr int kMostThreads = 1024;

struct Job {
  const __nv_bfloat16* x;
  int64_t x_stride;
  uint4* data;
  float* scales;
  int64_t scale_stride;
  int rows, pieces;
};

__device__ __forceinline__ float largest_of(const Float8& f) {
  float most = 0;
#pragma unroll
  for (float v : f.v) most = max_or_nan(most, fabsf(v));
  return most;
}

template <Factors kFactors>
__device__ __forceinline__ uint2 quantize_eight(const Float8& f, float by) {
  return {quantize_four<kFactors>(f.v[0] * by, f.v[1] * by, f.v[2] * by, f.v[3] * by),
          quantize_four<kFactors>(f.v[4] * by, f.v[5] * by, f.v[6] * by, f.v[7] * by)};
}

// A block per row, the row in registers.
template <Factors kFactors, int kEach>
__global__ void __launch_bounds__(kMostThreads) quantize(const Job job) {
  let_next_start();
  __shared__ float partial[kMostThreads / 32];
  wait_for_previous();
  const int row = int(blockIdx.x), threads = int(blockDim.x);
  const auto* x = reinterpret_cast<const uint4*>(job.x + row * job.x_stride);
  Float8 values[kEach][2];
  float most = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int piece = int(threadIdx.x) + i * threads;
    const bool inside = piece < job.pieces;
#pragma unroll
    for (int half = 0; half < 2; ++half) values[i][half] = unpack(inside ? x[2 * piece + half] : uint4{});
    const float largest = max_or_nan(largest_of(values[i][0]), largest_of(values[i][1]));
    if constexpr (kFactors != Factors::fp8_blocks) most = max_or_nan(most, largest);
  }
  RowScale scale{};
  if constexpr (kFactors != Factors::fp8_blocks) {
    scale = RowScale::of<kFactors>(block_max(most, partial));
    if (threadIdx.x == 0) job.scales[row] = scale.scale;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int piece = int(threadIdx.x) + i * threads;
    if constexpr (kFactors == Factors::fp8_blocks) {
      float largest = max_or_nan(largest_of(values[i][0]), largest_of(values[i][1]));
#pragma unroll
      for (int step = kBlockPieces / 2; step > 0; step /= 2)
        largest = max_or_nan(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      scale = RowScale::of<kFactors>(largest);
      if (piece < job.pieces && piece % kBlockPieces == 0)
        job.scales[piece / kBlockPieces * job.scale_stride + row] = scale.scale;
    }
    if (piece >= job.pieces) continue;
    const uint2 low = quantize_eight<kFactors>(values[i][0], scale.inverse),
                high = quantize_eight<kFactors>(values[i][1], scale.inverse);
    job.data[int64_t(row) * job.pieces + piece] = {low.x, low.y, high.x, high.y};
  }
}

template <Factors kFactors>
void quantize_as(const Context& context, const Job& job) {
  const int each = (job.pieces + kMostThreads - 1) / kMostThreads;
  CHECK(each <= 4, "rows of more than 65,536 columns are not quantized");
  const int threads = (((job.pieces + each - 1) / each) + 31) / 32 * 32;
  launch(context, each == 1 ? quantize<kFactors, 1> : quantize<kFactors, 4>, dim3(unsigned(job.rows)),
         dim3(unsigned(threads)), 0, job);
}

}  // namespace

void quantize_rows(const Context& context, const Tensor& x, const QuantizedRows& out) {
  check_vectors(x);
  CHECK(x.rows == out.rows && x.cols == out.cols && x.cols % kPiece == 0);
  if (x.rows == 0) return;
  const Job job{x.row<__nv_bfloat16>(0), x.stride,    static_cast<uint4*>(out.data), out.scales,
                out.scale_stride,        int(x.rows), int(x.cols / kPiece)};
  switch (out.factors) {
    case Factors::fp8:
      return quantize_as<Factors::fp8>(context, job);
    case Factors::fp8_blocks:
      return quantize_as<Factors::fp8_blocks>(context, job);
    case Factors::int8:
      return quantize_as<Factors::int8>(context, job);
    case Factors::bf16:
      break;
  }
  CHECK(false, "bf16 rows are not quantized");
}

}  // namespace sluice::cuda
