// rms_norm and add_rms_norm: one CTA per row, the row in registers, read once and written once. Float32 inside.
//
// What is normalised is the float32 sum, not its rounding to bf16 that the residual keeps: rounding twice costs
// the output 1.6e-3 against 1.1e-3 (README).
//
// The number of threads depends on the columns alone, never on the rows: equal rows give equal bits in any
// batch.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
int tune_norm_grid = 0, tune_norm_shape = 0;
namespace {

struct NormJob {
  const __nv_bfloat16* x;
  __nv_bfloat16* residual;
  __nv_bfloat16* out;
  int64_t x_stride, residual_stride, out_stride;
  const float* post_weight;
  const float* weight;
  float eps;
  int rows, vectors;
};

enum class Mode { norm, add_norm, post_add_norm };

// The sum over the CTA, for every thread. `partial` is not used again before the next barrier but one.
template <int kWarps>
__device__ __forceinline__ float block_sum(float value, float* partial) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float4 sum = *reinterpret_cast<const float4*>(partial);
#pragma unroll
  for (int w = 4; w < kWarps; w += 4) {
    const float4 more = *reinterpret_cast<const float4*>(partial + w);
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}

template <int kVectors>
__device__ __forceinline__ float squares(const Float8 (&row)[kVectors]) {
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum += row[v].v[i] * row[v].v[i];
  }
  return sum;
}

template <Mode kMode, int kVectors, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) norm_rows(const NormJob job) {
  constexpr int kThreads = kWarps * 32;
  let_next_start();
  __shared__ __align__(16) float partial[2][2][kWarps < 4 ? 4 : kWarps];
  Float8 weight[kVectors], post[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = int(threadIdx.x) + v * kThreads;
    if (at >= job.vectors) continue;
    weight[v] = load_weights(job.weight + at * kVec);
    if constexpr (kMode == Mode::post_add_norm) post[v] = load_weights(job.post_weight + at * kVec);
  }
  wait_for_previous();

  const float inverse_columns = 1.0f / float(job.vectors * kVec);
  int parity = 0;
  for (int row = int(blockIdx.x); row < job.rows; row += int(gridDim.x), parity ^= 1) {
    const auto* x = reinterpret_cast<const uint4*>(job.x + row * job.x_stride);
    auto* residual = reinterpret_cast<uint4*>(job.residual + row * job.residual_stride);
    auto* out = reinterpret_cast<uint4*>(job.out + row * job.out_stride);
    uint4 x_bits[kVectors], residual_bits[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = int(threadIdx.x) + v * kThreads;
      x_bits[v] = residual_bits[v] = uint4{};
      if (at >= job.vectors) continue;
      x_bits[v] = x[at];
      if constexpr (kMode != Mode::norm) residual_bits[v] = residual[at];
    }

    Float8 sum[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sum[v] = unpack(x_bits[v]);
    if constexpr (kMode == Mode::post_add_norm) {
      const float scale =
          rsqrtf(block_sum<kWarps>(squares(sum), partial[parity][1]) * inverse_columns + job.eps);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (int(threadIdx.x) + v * kThreads >= job.vectors) continue;
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[v].v[i] *= scale * post[v].v[i];
      }
    }
    if constexpr (kMode != Mode::norm) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = int(threadIdx.x) + v * kThreads;
        if (at >= job.vectors) continue;
        const Float8 before = unpack(residual_bits[v]);
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[v].v[i] += before.v[i];
        residual[at] = pack(sum[v]);
      }
    }

    const float scale = rsqrtf(block_sum<kWarps>(squares(sum), partial[parity][0]) * inverse_columns + job.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = int(threadIdx.x) + v * kThreads;
      if (at >= job.vectors) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[v].v[i] *= scale * weight[v].v[i];
      out[at] = pack(sum[v]);
    }
  }
}

template <Mode kMode, int kVectors, int kWarps>
void launch_norm(const Context& context, const NormJob& job) {
  const int grid = tune_norm_grid ? std::min(job.rows, tune_norm_grid) : job.rows;
  launch(context, norm_rows<kMode, kVectors, kWarps>, dim3(grid), dim3(kWarps * 32), 0, job);
}

template <Mode kMode>
void norm(const Context& context, const NormJob& job) {
  const int vectors = job.vectors;
  if (job.rows == 0) return;
  if (tune_norm_shape == 1) return launch_norm<kMode, 1, 16>(context, job);
  if (tune_norm_shape == 2) return launch_norm<kMode, 4, 4>(context, job);
  if (vectors <= 128) return launch_norm<kMode, 1, 4>(context, job);
  if (vectors <= 256) return launch_norm<kMode, 1, 8>(context, job);
  if (vectors <= 512) return launch_norm<kMode, 2, 8>(context, job);
  if (vectors <= 1024) return launch_norm<kMode, 2, 16>(context, job);
  if (vectors <= 2048) return launch_norm<kMode, 2, 32>(context, job);
  CHECK(false, "norms of more than 16,384 columns are not supported");
}

}  // namespace

void rms_norm(const Context& context, const RmsNormArgs& a) {
  check_vectors(a.x), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  norm<Mode::norm>(context, {a.x.row<__nv_bfloat16>(0), nullptr, a.out.row<__nv_bfloat16>(0), a.x.stride, 0,
                             a.out.stride, nullptr, a.weight, a.eps, int(a.x.rows), int(a.x.cols / kVec)});
}

void add_rms_norm(const Context& context, const AddRmsNormArgs& a) {
  check_vectors(a.x), check_vectors(a.residual), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  CHECK(a.residual.rows == a.x.rows && a.residual.cols == a.x.cols);
  const NormJob job = {a.x.row<__nv_bfloat16>(0),
                       a.residual.row<__nv_bfloat16>(0),
                       a.out.row<__nv_bfloat16>(0),
                       a.x.stride,
                       a.residual.stride,
                       a.out.stride,
                       a.post_weight,
                       a.weight,
                       a.eps,
                       int(a.x.rows),
                       int(a.x.cols / kVec)};
  a.post_weight ? norm<Mode::post_add_norm>(context, job) : norm<Mode::add_norm>(context, job);
}

}  // namespace sluice::cuda
