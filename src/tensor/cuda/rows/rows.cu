// The ops that move rows: embed, gather_rows, copy_blocks; and act_mul. No sums, so any split over threads will
// do: few rows are spread over many small CTAs.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/rows/activate.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

constexpr unsigned blocks_for(int64_t items, int64_t per_block) {
  return unsigned((items + per_block - 1) / per_block);
}

// Rows are blockIdx.y, which goes to 65,535 only.
void check_rows(int64_t rows) { CHECK(rows <= 65535, "more rows than a grid takes"); }

// The vectors of a row that thread `threadIdx.x` of CTA `blockIdx.x` moves: all loads, then all stores.
template <int kEach, typename From, typename To, typename F>
__device__ __forceinline__ void move_row(const From* from, To* to, int vectors, const F& change) {
  const int begin = int(blockIdx.x) * kThreads * kEach + int(threadIdx.x);
  From bits[kEach];
#pragma unroll
  for (int v = 0; v < kEach; ++v)
    if (begin + v * kThreads < vectors) bits[v] = from[begin + v * kThreads];
#pragma unroll
  for (int v = 0; v < kEach; ++v)
    if (begin + v * kThreads < vectors) to[begin + v * kThreads] = change(bits[v]);
}

template <int kEach>
__global__ void __launch_bounds__(kThreads)
    embed_rows(const uint2* table, int vocab, const int32_t* token_ids, const int32_t* last_ids, float scale,
               float4* out, int64_t out_stride, int vectors) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.y);
  int id = token_ids[row];
  if (id < 0) id = last_ids[-1 - id];
  if (id < 0 || id >= vocab) __trap();  // a bug upstream; a clamped id would be a wrong answer
  move_row<kEach>(table + int64_t(id) * vectors, out + row * out_stride, vectors, [&](uint2 bits) {
    const float4 f = unpack(bits);
    return float4{f.x * scale, f.y * scale, f.z * scale, f.w * scale};
  });
}

template <int kEach>
__global__ void __launch_bounds__(kThreads)
    gather(const uint4* x, int64_t x_stride, int x_rows, const int32_t* index, uint4* out, int64_t out_stride,
           int vectors) {
  let_next_start();
  wait_for_previous();
  const int row = int(blockIdx.y), from = index[row];
  if (from < 0 || from >= x_rows) __trap();
  move_row<kEach>(x + from * x_stride, out + row * out_stride, vectors, [](uint4 bits) { return bits; });
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

// One vector of the output per thread: two lost 0.1 µs at 1 row and won nothing at 2,048.
template <Activation kActivation>
__global__ void __launch_bounds__(kThreads)
    act_mul_rows(const uint4* gate_up, int64_t in_stride, uint4* out, int64_t out_stride, int vectors) {
  let_next_start();
  wait_for_previous();
  const int at = int(blockIdx.x * kThreads + threadIdx.x);
  if (at >= vectors) return;
  const uint4* row = gate_up + blockIdx.y * in_stride;
  const uint4 gate_bits = row[at], up_bits = row[vectors + at];
  Float8 gate = unpack(gate_bits);
  const Float8 up = unpack(up_bits);
#pragma unroll
  for (int i = 0; i < kVec; ++i) gate.v[i] = activate<kActivation>(gate.v[i]) * up.v[i];
  out[blockIdx.y * out_stride + at] = pack(gate);
}

// Few rows: many CTAs with one load per thread. Many: four loads in flight, a CTA for 4,096 columns.
constexpr int kManyEach = 4, kFewRows = 64;
dim3 move_grid(int vectors, int64_t rows) {
  return {blocks_for(vectors, rows <= kFewRows ? kThreads : kThreads * kManyEach), unsigned(rows)};
}

}  // namespace

void embed(const Context& context, const EmbedArgs& a) {
  check_f32_vectors(a.out), check_rows(a.out.rows);
  CHECK(a.table.parts.size() == 1 && a.table.cols == a.out.cols && a.out.rows == a.batch.tokens);
  CHECK(a.table.parts[0].format.element == WeightElement::bf16, "an embedding that is not bf16");
  if (a.out.rows == 0) return;
  const int vectors = int(a.out.cols / 4);
  launch(context, a.out.rows <= kFewRows ? embed_rows<1> : embed_rows<kManyEach>,
         move_grid(vectors, a.out.rows), dim3(kThreads), 0, a.table.parts[0].data.as<uint2>(),
         int(a.table.rows), a.batch.token_ids, a.batch.last_ids, a.scale, a.out.row<float4>(0),
         a.out.stride / 4, vectors);
}

void gather_rows(const Context& context, const Tensor& x, const int32_t* index, const Tensor& out) {
  CHECK(x.cols == out.cols && x.dtype == out.dtype);
  for (const Tensor& t : {x, out}) t.dtype == DType::f32 ? check_f32_vectors(t) : check_vectors(t);
  check_rows(out.rows);
  if (out.rows == 0) return;
  const int64_t each = x.dtype == DType::f32 ? 4 : kVec;  // elements of 16 bytes
  const int vectors = int(out.cols / each);
  launch(context, out.rows <= kFewRows ? gather<1> : gather<kManyEach>, move_grid(vectors, out.rows),
         dim3(kThreads), 0, x.row<uint4>(0), x.stride / each, int(x.rows), index, out.row<uint4>(0),
         out.stride / each, vectors);
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
  const int vectors = int(a.out.cols / kVec);
  launch(
      context,
      a.activation == Activation::silu ? act_mul_rows<Activation::silu> : act_mul_rows<Activation::gelu_tanh>,
      dim3(blocks_for(vectors, kThreads), unsigned(a.out.rows)), dim3(kThreads), 0, a.gate_up.row<uint4>(0),
      a.gate_up.stride / kVec, a.out.row<uint4>(0), a.out.stride / kVec, vectors);
}

}  // namespace sluice::cuda
