// rms_norm and add_rms_norm: one CTA per row, the row in registers, read once and written once. Float32 inside.
//
// What is normalised is the float32 sum, not its rounding to bf16 that the residual keeps: then the output's
// only error is its own rounding (1.7e-3 of its norm; with both roundings 2.4e-3).
//
// The number of threads depends on the columns alone, never on the rows: equal rows give equal bits in any
// batch.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

struct NormJob {
  const __nv_bfloat16* x;
  __nv_bfloat16* residual;
  __nv_bfloat16* out;
  int64_t x_stride, residual_stride, out_stride;
  const float* post_weight;
  const float* weight;
  float eps, inverse_columns;
  int rows, vectors;
};

enum class Mode { norm, add_norm, post_add_norm };

// The sum over the CTA, for every thread. One barrier; `partial` serves one sum of a CTA only.
template <int kWarps>
__device__ __forceinline__ float block_sum(float value, float* partial) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
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

__device__ __forceinline__ void multiply(Float8& f, float scale, const Float8& weight) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) f.v[i] *= scale * weight.v[i];
}

constexpr int resident(Mode mode, int vectors, int threads) {
  return vectors > 1 ? 1 : (mode == Mode::post_add_norm ? 1536 : 2048) / threads;
}

template <Mode kMode, int kVectors, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, resident(kMode, kVectors, kWarps * 32))
    norm_rows(const NormJob job) {
  constexpr int kThreads = kWarps * 32;
  let_next_start();
  __shared__ __align__(16) float partial[2][kWarps];
  Float8 weight[kVectors]{}, post[kVectors]{};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = int(threadIdx.x) + v * kThreads;
    if (at >= job.vectors) continue;
    weight[v] = load_weights(job.weight + at * kVec);
    if constexpr (kMode == Mode::post_add_norm) post[v] = load_weights(job.post_weight + at * kVec);
  }
  wait_for_previous();

  const int row = int(blockIdx.x);
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
    const float scale = rsqrtf(block_sum<kWarps>(squares(sum), partial[1]) * job.inverse_columns + job.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) multiply(sum[v], scale, post[v]);
  }
  if constexpr (kMode != Mode::norm) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = int(threadIdx.x) + v * kThreads;
      const Float8 before = unpack(residual_bits[v]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[v].v[i] += before.v[i];
      if (at < job.vectors) residual[at] = pack(sum[v]);
    }
  }

  const float scale = rsqrtf(block_sum<kWarps>(squares(sum), partial[0]) * job.inverse_columns + job.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = int(threadIdx.x) + v * kThreads;
    multiply(sum[v], scale, weight[v]);
    if (at < job.vectors) out[at] = pack(sum[v]);
  }
}

// Measured at 4,096 columns, 1 / 2,048 rows: one vector per thread 1.13 / 17.9 µs, two 1.44 / 20.1, four 1.55
// / 19.2. A grid of 264 to 1,056 CTAs that go from row to row: 18.1 µs at best. One row on a cluster of 2, 4, 8
// CTAs: 1.28, 1.22, 1.21 µs, so the cluster's barrier costs more than the shorter loads give.
template <Mode kMode, int kVectors, int kWarps>
void launch_norm(const Context& context, const NormJob& job) {
  launch(context, norm_rows<kMode, kVectors, kWarps>, dim3(unsigned(job.rows)), dim3(kWarps * 32), 0, job);
}

template <Mode kMode>
void norm(const Context& context, const NormJob& job) {
  if (job.rows == 0) return;
  if (job.vectors <= 128) return launch_norm<kMode, 1, 4>(context, job);
  if (job.vectors <= 256) return launch_norm<kMode, 1, 8>(context, job);
  if (job.vectors <= 512) return launch_norm<kMode, 1, 16>(context, job);
  if (job.vectors <= 1024) return launch_norm<kMode, 1, 32>(context, job);
  CHECK(job.vectors <= 2048, "norms of more than 16,384 columns are not supported");
  launch_norm<kMode, 2, 32>(context, job);
}

}  // namespace

void rms_norm(const Context& context, const RmsNormArgs& a) {
  check_vectors(a.x), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  norm<Mode::norm>(context, {.x = a.x.row<__nv_bfloat16>(0),
                             .residual = nullptr,
                             .out = a.out.row<__nv_bfloat16>(0),
                             .x_stride = a.x.stride,
                             .residual_stride = 0,
                             .out_stride = a.out.stride,
                             .post_weight = nullptr,
                             .weight = a.weight,
                             .eps = a.eps,
                             .inverse_columns = 1 / float(a.x.cols),
                             .rows = int(a.x.rows),
                             .vectors = int(a.x.cols / kVec)});
}

void add_rms_norm(const Context& context, const AddRmsNormArgs& a) {
  check_vectors(a.x), check_vectors(a.residual), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  CHECK(a.residual.rows == a.x.rows && a.residual.cols == a.x.cols);
  const NormJob job = {.x = a.x.row<__nv_bfloat16>(0),
                       .residual = a.residual.row<__nv_bfloat16>(0),
                       .out = a.out.row<__nv_bfloat16>(0),
                       .x_stride = a.x.stride,
                       .residual_stride = a.residual.stride,
                       .out_stride = a.out.stride,
                       .post_weight = a.post_weight,
                       .weight = a.weight,
                       .eps = a.eps,
                       .inverse_columns = 1 / float(a.x.cols),
                       .rows = int(a.x.rows),
                       .vectors = int(a.x.cols / kVec)};
  a.post_weight ? norm<Mode::post_add_norm>(context, job) : norm<Mode::add_norm>(context, job);
}

}  // namespace sluice::cuda
