// A block has 64 rows of one expert's matrix and passes over that expert's places, 16 or 64 at a time: the
// warp's matrix product with the factors swapped, so that few places waste little of a tile. Both factors come
// through a ring of stages in shared memory. A place's result depends on its row and on the tile's height
// alone.
#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/experts/grouped_gemm.h"
#include "tensor/cuda/ptx/barrier.h"
#include "tensor/cuda/ptx/copy_async.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32, kTileN = kWarps * 16, kTileK = 64, kStages = 4;
constexpr int kPitch = kTileK + 8;  // 16 bytes more than a row: ldmatrix without bank conflicts
constexpr int kOutPitch = kTileN + 8;
constexpr int kPieces = kTileK / 8;  // of 16 bytes in a stage's row

constexpr int shared_bytes(int tile_rows) { return kStages * (kTileN + tile_rows) * kPitch * 2; }

struct Job {
  const __nv_bfloat16* x;
  __nv_bfloat16* out;
  int64_t x_stride, out_stride;
  const int32_t *rows, *starts;
  int n, k;
};

// Rows of `from` (k columns, contiguous) to a stage; what lies beyond `count` rows or k columns becomes zero.
template <int kRows, typename RowAt>
__device__ void load_stage(__nv_bfloat16* to, int count, int column, int k, const RowAt& row_at) {
#pragma unroll
  for (int piece = int(threadIdx.x); piece < kRows * kPieces; piece += kThreads) {
    const int row = piece / kPieces, at = column + piece % kPieces * 8;
    const bool wanted = row < count && at < k;
    ptx::copy_async_16(ptx::shared_address(to + row * kPitch + piece % kPieces * 8),
                       row_at(wanted ? row : 0) + (wanted ? at : 0), wanted);
  }
}

// A warp's 16 rows of the matrix times the tile's places, one stage's columns.
template <int kRows>
__device__ void multiply(const __nv_bfloat16* w, const __nv_bfloat16* x, float (&sums)[kRows / 8][4]) {
  const int lane = int(threadIdx.x) % 32, warp_row = int(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
    uint32_t a[4];
    ptx::load_matrix_x4(a, ptx::shared_address(w + (warp_row + lane % 16) * kPitch + k + lane / 16 * 8));
#pragma unroll
    for (int t = 0; t < kRows / 8; t += 2) {
      uint32_t b[4];
      const int row = t * 8 + lane / 16 * 8 + lane % 8;
      ptx::load_matrix_x4(b, ptx::shared_address(x + row * kPitch + k + lane / 8 % 2 * 8));
      ptx::mma_16x8x16(sums[t], a, b[0], b[1]);
      ptx::mma_16x8x16(sums[t + 1], a, b[2], b[3]);
    }
  }
}

// The sums lie with the matrix's rows along the warp's rows; through shared memory they leave as rows of `out`.
template <int kRows>
__device__ void store(const Job& job, const float (&sums)[kRows / 8][4], __nv_bfloat16* shared, int first,
                      int count) {
  const int lane = int(threadIdx.x) % 32, n = int(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int t = 0; t < kRows / 8; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      shared[(t * 8 + lane % 4 * 2 + i % 2) * kOutPitch + n + i / 2 * 8] = __float2bfloat16(sums[t][i]);
  __syncthreads();
  for (int piece = int(threadIdx.x); piece < count * (kTileN / 8); piece += kThreads) {
    const int row = piece / (kTileN / 8), column = piece % (kTileN / 8) * 8,
              at = int(blockIdx.x) * kTileN + column;
    if (at < job.n)
      *reinterpret_cast<uint4*>(job.out + (first + row) * job.out_stride + at) =
          *reinterpret_cast<const uint4*>(shared + row * kOutPitch + column);
  }
  __syncthreads();
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) multiply_groups(Job job, ExpertPointers weights) {
  extern __shared__ __align__(128) __nv_bfloat16 shared[];
  let_next_start();
  wait_for_previous();
  const int expert = int(blockIdx.y), begin = job.starts[expert], end = job.starts[expert + 1];
  const int n_begin = int(blockIdx.x) * kTileN, n_count = min(kTileN, job.n - n_begin);
  const __nv_bfloat16* w = weights.at[expert] + int64_t(n_begin) * job.k;
  const int steps = (job.k + kTileK - 1) / kTileK;
  const auto stage_w = [&](int step) { return shared + step % kStages * (kTileN + kRows) * kPitch; };
  for (int first = begin; first < end; first += kRows) {
    const int count = min(kRows, end - first);
    const auto load = [&](int step) {
      if (step < steps) {
        load_stage<kTileN>(stage_w(step), n_count, step * kTileK, job.k,
                           [&](int row) { return w + int64_t(row) * job.k; });
        load_stage<kRows>(stage_w(step) + kTileN * kPitch, count, step * kTileK, job.k, [&](int row) {
          return job.x + (job.rows ? job.rows[first + row] : first + row) * job.x_stride;
        });
      }
      ptx::copy_async_commit();
    };
    float sums[kRows / 8][4] = {};
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      ptx::copy_async_wait<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1);
      multiply<kRows>(stage_w(step), stage_w(step) + kTileN * kPitch, sums);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    store<kRows>(job, sums, shared, first, count);
  }
}

constexpr int kFew = 16, kMany = 64;  // places a tile

}  // namespace

void grouped_gemm_prepare() {
  CUDA_CHECK(cudaFuncSetAttribute(multiply_groups<kFew>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes(kFew)));
  CUDA_CHECK(cudaFuncSetAttribute(multiply_groups<kMany>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes(kMany)));
}

void grouped_gemm(const Context& context, const GroupedGemm& a) {
  CHECK(a.x.dtype == DType::bf16 && a.out.dtype == DType::bf16);
  CHECK(a.x.cols % 8 == 0 && a.out.cols % 8 == 0 && a.x.stride % 8 == 0 && a.out.stride % 8 == 0);
  const Job job{a.x.row<__nv_bfloat16>(0),
                a.out.row<__nv_bfloat16>(0),
                a.x.stride,
                a.out.stride,
                a.rows,
                a.starts,
                int(a.out.cols),
                int(a.x.cols)};
  const dim3 grid{unsigned((job.n + kTileN - 1) / kTileN), unsigned(a.experts)};
  const bool few = a.choices <= kFew * a.experts;
  launch(context, few ? multiply_groups<kFew> : multiply_groups<kMany>, grid, dim3(kThreads),
         size_t(shared_bytes(few ? kFew : kMany)), job, a.weights);
}

}  // namespace sluice::cuda
