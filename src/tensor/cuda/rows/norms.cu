// rms_norm and add_rms_norm: one CTA per row, the row in registers, read once and written once. Float32 inside.
//
// The residual is float32 and what is added to it bf16. A residual kept in bf16 was the larger part of a whole
// model's error: sixty roundings of a sum that grows (docs/performance.md). A thread has columns in fours, so
// that both kinds are read and written by whole lines.
//
// The number of threads depends on the columns alone, never on the rows: equal rows give equal bits in any
// batch.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/quantize.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

struct NormJob {
  const __nv_bfloat16* x;
  float* residual;  // of Mode::norm: only read
  __nv_bfloat16* out;
  int64_t x_stride, residual_stride, out_stride;
  const float* post_weight;
  const float* weight;
  float eps, inverse_columns;
  int rows, fours;     // columns / 4
  QuantizedRows copy;  // of the output; no data: none
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

// residual += x alone.
__global__ void __launch_bounds__(256) add_rows(const NormJob job) {
  let_next_start();
  wait_for_previous();
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= job.fours) return;
  const auto row = int64_t(blockIdx.y);
  const float4 added = unpack(reinterpret_cast<const uint2*>(job.x + row * job.x_stride)[at]);
  float4& sum = reinterpret_cast<float4*>(job.residual + row * job.residual_stride)[at];
  sum.x += added.x, sum.y += added.y, sum.z += added.z, sum.w += added.w;
}

template <int kFours>
__device__ __forceinline__ float squares(const float4 (&row)[kFours]) {
  float sum = 0;
#pragma unroll
  for (const float4& f : row) sum += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w;
  return sum;
}

__device__ __forceinline__ void multiply(float4& f, float scale, const float4& weight) {
  f.x *= scale * weight.x, f.y *= scale * weight.y, f.z *= scale * weight.z, f.w *= scale * weight.w;
}

// A row that has been written, quantized from the same bf16 values. `partial`: a float for each warp.
template <Factors kFactors, int kFours, int kThreads>
__device__ __forceinline__ void write_copy(const QuantizedRows& copy, int row, int fours,
                                           float4 (&values)[kFours], float* partial) {
  float most[kFours], most_of_row = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    float4& v = values[i];
    v = unpack(pack(v));
    most[i] = max_or_nan(max_or_nan(fabsf(v.x), fabsf(v.y)), max_or_nan(fabsf(v.z), fabsf(v.w)));
    if (int(threadIdx.x) + i * kThreads >= fours) most[i] = 0;
    most_of_row = max_or_nan(most_of_row, most[i]);
  }
  RowScale scale{};
  if constexpr (kFactors != Factors::fp8_blocks) {
    scale = RowScale::of<kFactors>(block_max(most_of_row, partial));
    if (threadIdx.x == 0) copy.scales[row] = scale.scale;
  }
  auto* out = static_cast<uint32_t*>(copy.data) + int64_t(row) * fours;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = int(threadIdx.x) + i * kThreads;
    if constexpr (kFactors == Factors::fp8_blocks) {  // a warp has the 128 columns of a scale
      scale = RowScale::of<kFactors>(warp_max(most[i]));
      if (threadIdx.x % 32 == 0 && at < fours) copy.scales[at / 32 * copy.scale_stride + row] = scale.scale;
    }
    const float by = scale.inverse;
    const float4& v = values[i];
    if (at < fours) out[at] = quantize_four<kFactors>(v.x * by, v.y * by, v.z * by, v.w * by);
  }
}

// CTAs of a multiprocessor. A post norm has a row and a weight more in registers.
constexpr int resident(Mode mode, int fours, int threads) {
  return fours > 2 ? 1 : (mode == Mode::post_add_norm ? 1024 : 2048) / threads;
}

template <Mode kMode, int kFours, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, resident(kMode, kFours, kWarps * 32))
    norm_rows(const NormJob job) {
  constexpr int kThreads = kWarps * 32;
  let_next_start();
  __shared__ __align__(16) float partial[3][kWarps];
  float4 weight[kFours]{}, post[kFours]{};
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = int(threadIdx.x) + i * kThreads;
    if (at >= job.fours) continue;
    weight[i] = ptx::load_here(reinterpret_cast<const float4*>(job.weight) + at);
    if constexpr (kMode == Mode::post_add_norm)
      post[i] = ptx::load_here(reinterpret_cast<const float4*>(job.post_weight) + at);
  }
  wait_for_previous();

  const int row = int(blockIdx.x);
  const auto* x = reinterpret_cast<const uint2*>(job.x + row * job.x_stride);
  auto* residual = reinterpret_cast<float4*>(job.residual + row * job.residual_stride);
  auto* out = reinterpret_cast<uint2*>(job.out + row * job.out_stride);
  uint2 x_bits[kFours];
  float4 sum[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = int(threadIdx.x) + i * kThreads;
    x_bits[i] = uint2{};
    sum[i] = float4{};
    if (at >= job.fours) continue;
    if constexpr (kMode != Mode::norm) x_bits[i] = x[at];
    sum[i] = residual[at];
  }

  if constexpr (kMode != Mode::norm) {
    float4 added[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) added[i] = unpack(x_bits[i]);
    if constexpr (kMode == Mode::post_add_norm) {
      const float scale = rsqrtf(block_sum<kWarps>(squares(added), partial[1]) * job.inverse_columns + job.eps);
#pragma unroll
      for (int i = 0; i < kFours; ++i) multiply(added[i], scale, post[i]);
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = int(threadIdx.x) + i * kThreads;
      sum[i].x += added[i].x, sum[i].y += added[i].y, sum[i].z += added[i].z, sum[i].w += added[i].w;
      if (at < job.fours) residual[at] = sum[i];
    }
  }

  const float scale = rsqrtf(block_sum<kWarps>(squares(sum), partial[0]) * job.inverse_columns + job.eps);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = int(threadIdx.x) + i * kThreads;
    multiply(sum[i], scale, weight[i]);
    if (at < job.fours) out[at] = pack(sum[i]);
  }
  if (!job.copy.data) return;
  if (job.copy.factors == Factors::fp8)
    write_copy<Factors::fp8, kFours, kThreads>(job.copy, row, job.fours, sum, partial[2]);
  else if (job.copy.factors == Factors::fp8_blocks)
    write_copy<Factors::fp8_blocks, kFours, kThreads>(job.copy, row, job.fours, sum, partial[2]);
  else
    write_copy<Factors::int8, kFours, kThreads>(job.copy, row, job.fours, sum, partial[2]);
}

// Measured at 4,096 columns, 1 / 2,048 rows, of the first version (a bf16 residual, eight columns at a time):
// eight columns per thread 1.13 / 17.9 µs, sixteen 1.44 / 20.1, 32 1.55 / 19.2. A grid of 264 to 1,056 CTAs
// that go from row to row: 18.1 µs at best. One row on a cluster of 2, 4, 8 CTAs: 1.28, 1.22, 1.21 µs, so the
// cluster's barrier costs more than the shorter loads give.
template <Mode kMode, int kFours, int kWarps>
void launch_norm(const Context& context, const NormJob& job) {
  launch(context, norm_rows<kMode, kFours, kWarps>, dim3(unsigned(job.rows)), dim3(kWarps * 32), 0, job);
}

template <Mode kMode>
void norm(const Context& context, const NormJob& job) {
  if (job.rows == 0) return;
  if (job.fours <= 256) return launch_norm<kMode, 2, 4>(context, job);
  if (job.fours <= 512) return launch_norm<kMode, 2, 8>(context, job);
  if (job.fours <= 1024) return launch_norm<kMode, 2, 16>(context, job);
  if (job.fours <= 2048) return launch_norm<kMode, 2, 32>(context, job);
  CHECK(job.fours <= 4096, "norms of more than 16,384 columns are not supported");
  launch_norm<kMode, 4, 32>(context, job);
}

}  // namespace

void rms_norm(const Context& context, const RmsNormArgs& a, const QuantizedRows* copy) {
  check_f32_vectors(a.x), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  norm<Mode::norm>(context, {.x = nullptr,
                             .residual = a.x.row<float>(0),
                             .out = a.out.row<__nv_bfloat16>(0),
                             .x_stride = 0,
                             .residual_stride = a.x.stride,
                             .out_stride = a.out.stride,
                             .post_weight = nullptr,
                             .weight = a.weight,
                             .eps = a.eps,
                             .inverse_columns = 1 / float(a.x.cols),
                             .rows = int(a.x.rows),
                             .fours = int(a.x.cols / 4),
                             .copy = copy ? *copy : QuantizedRows{}});
}

void add_rms_norm(const Context& context, const AddRmsNormArgs& a, const QuantizedRows* copy) {
  check_vectors(a.x), check_f32_vectors(a.residual), check_vectors(a.out);
  CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols);
  CHECK(a.residual.rows == a.x.rows && a.residual.cols == a.x.cols);
  const NormJob job = {.x = a.x.row<__nv_bfloat16>(0),
                       .residual = a.residual.row<float>(0),
                       .out = a.out.row<__nv_bfloat16>(0),
                       .x_stride = a.x.stride,
                       .residual_stride = a.residual.stride,
                       .out_stride = a.out.stride,
                       .post_weight = a.post_weight,
                       .weight = a.weight,
                       .eps = a.eps,
                       .inverse_columns = 1 / float(a.x.cols),
                       .rows = int(a.x.rows),
                       .fours = int(a.x.cols / 4),
                       .copy = copy ? *copy : QuantizedRows{}};
  if (!a.weight) {
    CHECK(!a.post_weight, "an addition alone has no norm of its own");
    if (job.rows > 0)
      launch(context, add_rows, dim3(unsigned(job.fours + 255) / 256, unsigned(job.rows)), dim3(256), 0, job);
    return;
  }
  a.post_weight ? norm<Mode::post_add_norm>(context, job) : norm<Mode::add_norm>(context, job);
}

}  // namespace sluice::cuda
