// The ops that move rows: embed, gather_rows, copy_blocks; and act_mul. No sums, so any split over threads will
// do: few rows are spread over many small CTAs, many rows give each thread several loads in flight.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
int tune_act_vectors = 0;
namespace {

constexpr int kThreads = 128;

constexpr unsigned blocks_for(int64_t items, int64_t per_block) {
  return unsigned((items + per_block - 1) / per_block);
}

// Rows are blockIdx.y, which goes to 65,535 only.
void check_rows(int64_t rows) { CHECK(rows <= 65535, "more rows than a grid takes"); }

__global__ void __launch_bounds__(kThreads)
    embed_rows(const uint4* table, int vocab, const int32_t* token_ids, const int32_t* last_ids, float scale,
               uint4* out, int64_t out_stride, int vectors) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.y), at = int(blockIdx.x * kThreads + threadIdx.x);
  int id = token_ids[row];
  if (id < 0) id = last_ids[-1 - id];
  if (id < 0 || id >= vocab) __trap();  // a bug upstream; a clamped id would be a wrong answer
  if (at >= vectors) return;
  Float8 f = unpack(__ldg(table + int64_t(id) * vectors + at));
#pragma unroll
  for (int i = 0; i < kVec; ++i) f.v[i] *= scale;
  out[row * out_stride + at] = pack(f);
}

__global__ void __launch_bounds__(kThreads)
    gather(const uint4* x, int64_t x_stride, int x_rows, const int32_t* index, uint4* out, int64_t out_stride,
           int vectors) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.y), at = int(blockIdx.x * kThreads + threadIdx.x);
  const int from = index[row];
  if (from < 0 || from >= x_rows) __trap();
  if (at < vectors) out[row * out_stride + at] = x[from * x_stride + at];
}

__global__ void __launch_bounds__(256)
    copy_pairs(uint4* pool, size_t block_vectors, const int32_t* pairs, size_t vectors_each) {
  let_next_start();
  wait_for_previous();
  const uint4* from = pool + size_t(pairs[2 * blockIdx.y]) * block_vectors;
  uint4* to = pool + size_t(pairs[2 * blockIdx.y + 1]) * block_vectors;
  const size_t begin = blockIdx.x * vectors_each, end = min(begin + vectors_each, block_vectors);
#pragma unroll 4
  for (size_t i = begin + threadIdx.x; i < end; i += 256) to[i] = from[i];
}

template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == Activation::silu) return __fdividef(x, 1 + __expf(-x));
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u))
  const float twice_inner = 1.5957691216f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1 + __expf(-twice_inner));
}

template <Activation kActivation, int kEach>
__global__ void __launch_bounds__(kThreads)
    act_mul_rows(const uint4* gate_up, int64_t in_stride, uint4* out, int64_t out_stride, int vectors) {
  let_next_start();
  wait_for_previous();
  const uint4* gate = gate_up + blockIdx.y * in_stride;
  const uint4* up = gate + vectors;
  const int begin = int(blockIdx.x) * kThreads * kEach + int(threadIdx.x);
  uint4 gates[kEach], ups[kEach];
#pragma unroll
  for (int v = 0; v < kEach; ++v) {
    const int at = begin + v * kThreads;
    if (at < vectors) gates[v] = gate[at], ups[v] = up[at];
  }
#pragma unroll
  for (int v = 0; v < kEach; ++v) {
    const int at = begin + v * kThreads;
    if (at >= vectors) continue;
    Float8 g = unpack(gates[v]);
    const Float8 u = unpack(ups[v]);
#pragma unroll
    for (int i = 0; i < kVec; ++i) g.v[i] = activate<kActivation>(g.v[i]) * u.v[i];
    out[blockIdx.y * out_stride + at] = pack(g);
  }
}

template <Activation kActivation, int kEach>
void launch_act_mul(const Context& context, const ActMulArgs& a) {
  const int vectors = int(a.out.cols / kVec);
  launch(context, act_mul_rows<kActivation, kEach>,
         dim3(blocks_for(vectors, kThreads * kEach), unsigned(a.out.rows)), dim3(kThreads), 0,
         a.gate_up.row<uint4>(0), a.gate_up.stride / kVec, a.out.row<uint4>(0), a.out.stride / kVec, vectors);
}

}  // namespace

void embed(const Context& context, const EmbedArgs& a) {
  check_vectors(a.out), check_rows(a.out.rows);
  CHECK(a.table.parts.size() == 1 && a.table.cols == a.out.cols && a.out.rows == a.batch.tokens);
  if (a.out.rows == 0) return;
  const int vectors = int(a.out.cols / kVec);
  launch(context, embed_rows, dim3(blocks_for(vectors, kThreads), unsigned(a.out.rows)), dim3(kThreads), 0,
         a.table.parts[0].data.as<uint4>(), int(a.table.rows), a.batch.token_ids, a.batch.last_ids, a.scale,
         a.out.row<uint4>(0), a.out.stride / kVec, vectors);
}

void gather_rows(const Context& context, const Tensor& x, const int32_t* index, const Tensor& out) {
  check_vectors(x), check_vectors(out), check_rows(out.rows);
  CHECK(x.cols == out.cols);
  if (out.rows == 0) return;
  const int vectors = int(out.cols / kVec);
  launch(context, gather, dim3(blocks_for(vectors, kThreads), unsigned(out.rows)), dim3(kThreads), 0,
         x.row<uint4>(0), x.stride / kVec, int(x.rows), index, out.row<uint4>(0), out.stride / kVec, vectors);
}

void copy_blocks(const Context& context, std::byte* pool, size_t block_bytes, const int32_t* pairs, int count) {
  CHECK(block_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(pool) % 16 == 0);
  check_rows(count);
  if (count == 0) return;
  const size_t vectors = block_bytes / 16, each = 256 * 8;
  launch(context, copy_pairs, dim3(blocks_for(int64_t(vectors), int64_t(each)), unsigned(count)), dim3(256), 0,
         reinterpret_cast<uint4*>(pool), vectors, pairs, each);
}

void act_mul(const Context& context, const ActMulArgs& a) {
  check_vectors(a.gate_up), check_vectors(a.out), check_rows(a.out.rows);
  CHECK(a.gate_up.rows == a.out.rows && a.gate_up.cols == 2 * a.out.cols);
  if (a.out.rows == 0) return;
  const bool few = tune_act_vectors ? tune_act_vectors == 1 : a.out.rows <= 16;
  if (a.activation == Activation::silu)
    few ? launch_act_mul<Activation::silu, 1>(context, a) : launch_act_mul<Activation::silu, 2>(context, a);
  else
    few ? launch_act_mul<Activation::gelu_tanh, 1>(context, a)
        : launch_act_mul<Activation::gelu_tanh, 2>(context, a);
}

}  // namespace sluice::cuda
