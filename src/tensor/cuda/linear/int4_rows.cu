#include "tensor/cuda/linear/int4_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

struct Packed {
  const uint8_t* data;
  int block_cols, block_bytes, scales_offset, group;
  int64_t panel_bytes;

  Packed(const void* weights, const Int4Layout& l)
      : data(static_cast<const uint8_t*>(weights)),
        block_cols(l.block_cols()),
        block_bytes(l.block_bytes()),
        scales_offset(l.scales_offset()),
        group(l.group),
        panel_bytes(l.panel_bytes()) {}

  __device__ const uint8_t* block(int64_t panel, int column) const {
    return data + panel * panel_bytes + column / block_cols * block_bytes;
  }
};

__device__ __forceinline__ float2 scale_zero(const Packed& p, const uint8_t* block, int in_block, int row) {
  const auto* pair =
      reinterpret_cast<const __half2*>(block + p.scales_offset + (in_block / p.group * kPanelRows + row) * 4);
  const float2 sz = __half22float2(*pair);
  return {sz.x * (1 / kInt4ScaleUp), sz.y};
}

// Eight columns from `column` (a multiple of 8) on, of rows `row` (0 .. 7) and row + 8 of a panel: four words,
// each with two neighbours of either row.
struct Eights {
  float upper[8], lower[8];
};
__device__ __forceinline__ Eights decode(const Packed& p, int64_t panel, int row, int column) {
  const uint8_t* block = p.block(panel, column);
  const int in_block = column % p.block_cols;
  const auto* words =
      reinterpret_cast<const uint32_t*>(block) + in_block / 32 * 64 + row * 8 + in_block % 32 / 16;
  const int shift = in_block % 16 / 8 * 8;  // register j of the upper row; that of the lower is 4 bits on
  const float2 upper = scale_zero(p, block, in_block, row), lower = scale_zero(p, block, in_block, row + 8);
  Eights e;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t word = words[2 * t] >> shift;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      e.upper[2 * t + h] = upper.x * (float(word >> (16 * h) & 15) - upper.y);
      e.lower[2 * t + h] = lower.x * (float(word >> (16 * h + 4) & 15) - lower.y);
    }
  }
  return e;
}

__device__ __forceinline__ uint4 rounded(const float (&v)[8]) {
  return {ptx::pack_bf16(v[0], v[1]), ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]),
          ptx::pack_bf16(v[6], v[7])};
}

// A thread's share is eight columns of two rows, neighbours' are beside each other.
__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ Packed p, int64_t first_panel, int64_t rows, int cols, uint4* out) {
  let_next_start();
  wait_for_previous();
  const int vectors = cols / 8;
  const int64_t items = (rows + kPanelRows - 1) / kPanelRows * 8 * vectors,
                step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < items; i += step) {
    const int64_t pair = i / vectors;
    const int vector = int(i - pair * vectors), row = int(pair % 8);
    const int64_t panel = pair / 8, at = panel * kPanelRows + row;
    const Eights e = decode(p, first_panel + panel, row, vector * 8);
    if (at < rows) out[at * vectors + vector] = rounded(e.upper);
    if (at + 8 < rows) out[(at + 8) * vectors + vector] = rounded(e.lower);
  }
}

__global__ void __launch_bounds__(kThreads)
    embed(const __grid_constant__ Packed p, int vocab, int cols, const int32_t* token_ids,
          const int32_t* last_ids, float scale, float* out, int64_t out_stride) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.y), vector = int(blockIdx.x) * kThreads + int(threadIdx.x);
  int id = token_ids[row];
  if (id < 0) id = last_ids[-1 - id];
  if (id < 0 || id >= vocab) __trap();  // a bug upstream; a clamped id would be a wrong answer
  if (vector * 8 >= cols) return;
  const Eights e = decode(p, id / kPanelRows, id % 8, vector * 8);
  float* to = out + row * out_stride + vector * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = scale * (id / 8 % 2 ? e.lower[i] : e.upper[i]);
}

__global__ void __launch_bounds__(kThreads)
    find_odd_zeros(const __grid_constant__ Packed p, int64_t pairs, int pairs_each, int* found) {
  let_next_start();
  wait_for_previous();
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < pairs;
       i += int64_t(gridDim.x) * kThreads) {
    const uint8_t* block = p.data + i / pairs_each * p.block_bytes;
    const auto* pair = reinterpret_cast<const __half2*>(block + p.scales_offset) + i % pairs_each;
    const float zero = __high2float(*pair);
    if (!(zero >= 0 && zero < 128 && zero == rintf(zero))) *found = 1;
  }
}

}  // namespace

void int4_expand(const Context& context, const void* weights, const Int4Layout& layout, int64_t first_row,
                 int64_t rows, void* out) {
  CHECK(first_row % kPanelRows == 0 && first_row + rows <= layout.rows);
  const int64_t items = (rows + kPanelRows - 1) / kPanelRows * 8 * (layout.cols / 8);
  const auto grid = unsigned(std::min<int64_t>((items + kThreads - 1) / kThreads, context.multiprocessors * 8));
  launch(context, expand, dim3(grid), dim3(kThreads), 0, Packed(weights, layout), first_row / kPanelRows, rows,
         int(layout.cols), static_cast<uint4*>(out));
}

void int4_embed(const Context& context, const EmbedArgs& a) {
  const Weight::Part& part = a.table.parts[0];
  CHECK(a.table.parts.size() == 1 && a.table.cols == a.out.cols && a.out.rows == a.batch.tokens);
  CHECK(a.out.dtype == DType::f32 && a.out.rows <= 65535);
  if (a.out.rows == 0) return;
  const Int4Layout layout{a.table.rows, a.table.cols, part.format.group};
  const auto across = unsigned((layout.cols / 8 + kThreads - 1) / kThreads);
  launch(context, embed, dim3(across, unsigned(a.out.rows)), dim3(kThreads), 0,
         Packed(part.data.data(), layout), int(layout.rows), int(layout.cols), a.batch.token_ids,
         a.batch.last_ids, a.scale, static_cast<float*>(a.out.data), a.out.stride);
}

void int4_find_odd_zeros(const Context& context, const void* weights, const Int4Layout& layout, int* found) {
  const int each = layout.block_cols() / layout.group * kPanelRows;
  const int64_t blocks = layout.panels() * layout.blocks(), pairs = blocks * each;
  if (pairs == 0) return;
  const auto grid = unsigned(std::min<int64_t>((pairs + kThreads - 1) / kThreads, context.multiprocessors * 8));
  launch(context, find_odd_zeros, dim3(grid), dim3(kThreads), 0, Packed(weights, layout), pairs, each, found);
}

}  // namespace sluice::cuda
