// rope_store_kv: q and k heads normalised (where the model does that) and rotated, q back in place, k and v
// into the cache. A CTA has one row, or part of its heads; cos and sin of the row's position are computed once
// per CTA, in shared memory.
//
// Positions and block tables are read before wait_for_previous(): no kernel writes them, and they were brought
// to the card before the step's first kernel started. So angles are ready when the product before ends.
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/rows/vec8.h"

namespace sluice::cuda {
namespace {

constexpr int kMaxHeadDim = 256, kThreads = 128;

struct RopeJob {
  __nv_bfloat16* qkv;
  int64_t stride;
  const int32_t *positions, *row_sequence, *table;
  int table_stride;
  std::byte* layer;  // of block 0
  size_t block_bytes;
  int64_t value_offset;  // from a key to its value, elements
  int block_tokens;
  int heads, kv_heads, head_dim, rotary;
  const float *q_norm, *k_norm, *inv_freq;
  float eps, inverse_columns, magnitude;
};

// Where a row's k or v head goes in the cache; null: a padding row, nothing is stored.
struct Place {
  const RopeJob& job;
  int32_t block;
  int slot;

  __device__ __nv_bfloat16* head(int h) const {  // h: 0 .. 2G-1, keys then values
    if (block < 0) return nullptr;
    const bool value = h >= job.kv_heads;
    auto* base = reinterpret_cast<__nv_bfloat16*>(job.layer + size_t(block) * job.block_bytes);
    const int64_t token = int64_t(value ? h - job.kv_heads : h) * job.block_tokens + slot;
    return base + (value ? job.value_offset : 0) + token * job.head_dim;
  }
};

__device__ __forceinline__ Place place_of(const RopeJob& job, int row, int position) {
  const int32_t* blocks = job.table + int64_t(job.row_sequence[row]) * job.table_stride;
  return {job, blocks[position / job.block_tokens], position % job.block_tokens};
}

// Full-range sine and cosine (sincosf reduces any float accurately; __sincosf is off by 1e-2 at 100,000).
__device__ __forceinline__ float2 turn(const RopeJob& job, int position, int i) {
  float sine, cosine;
  sincosf(float(position) * __ldg(job.inv_freq + i), &sine, &cosine);
  return {cosine * job.magnitude, sine * job.magnitude};
}

// Two vectors of one head: the halves of eight rotated pairs, or two that pass.
struct Piece {
  uint4 a, b;
};

__device__ __forceinline__ void rotate(Float8& a, Float8& b, const Float8& cosine, const Float8& sine) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float low = a.v[i], high = b.v[i];
    a.v[i] = low * cosine.v[i] - high * sine.v[i];
    b.v[i] = high * cosine.v[i] + low * sine.v[i];
  }
}

__device__ __forceinline__ void multiply(Float8& f, float scale, const Float8& weights) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) f.v[i] *= scale * weights.v[i];
}

// kLanes threads share a head; a thread has the same place in kEach heads, so it reads its angles once.
template <int kLanes, bool kNorms, int kEach>
__global__ void __launch_bounds__(kThreads) rope_store_vectors(const RopeJob job) {
  let_next_start();
  __shared__ __align__(16) float cosines[kMaxHeadDim / 2], sines[kMaxHeadDim / 2];
  constexpr int kStep = kThreads / kLanes;  // heads that the CTA does at a time
  const int row = int(blockIdx.x), lane = int(threadIdx.x) % kLanes, pairs = job.rotary / (2 * kVec);
  const int first_head = int(blockIdx.y) * kStep * kEach + int(threadIdx.x) / kLanes;
  const int first = lane < pairs ? lane : job.rotary / kVec + 2 * (lane - pairs);
  const int second = lane < pairs ? lane + pairs : first + 1;
  const bool has_first = first * kVec < job.head_dim, has_second = second * kVec < job.head_dim;
  const int all_heads = job.heads + 2 * job.kv_heads, rotating_heads = job.heads + job.kv_heads;

  const int position = job.positions[row];
  const Place place = place_of(job, row, position);
  for (int i = int(threadIdx.x); i < job.rotary / 2; i += kThreads) {
    const float2 t = turn(job, position, i);
    cosines[i] = t.x, sines[i] = t.y;
  }
  const auto norm_of = [&](int head) { return head < job.heads ? job.q_norm : job.k_norm; };
  // One head: its weights are brought before the wait. Several: where they are used, from L1; registers are
  // short.
  Float8 a_weights{}, b_weights{};
  const auto load_norm = [&](const float* norm) {
    if (has_first) a_weights = load_weights(norm + first * kVec);
    if (has_second) b_weights = load_weights(norm + second * kVec);
  };
  if (kNorms && kEach == 1 && first_head < rotating_heads && norm_of(first_head))
    load_norm(norm_of(first_head));
  wait_for_previous();

  __nv_bfloat16* heads = job.qkv + row * job.stride;
  Piece pieces[kEach]{};
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int head = first_head + e * kStep;
    const auto* at = reinterpret_cast<const uint4*>(heads + head * job.head_dim);
    if (head < all_heads && has_first) pieces[e].a = at[first];
    if (head < all_heads && has_second) pieces[e].b = at[second];
  }
  __syncthreads();
  Float8 cosine{}, sine{};
  if (lane < pairs) {
    cosine = *reinterpret_cast<const Float8*>(cosines + lane * kVec);
    sine = *reinterpret_cast<const Float8*>(sines + lane * kVec);
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int head = first_head + e * kStep;
    Piece& piece = pieces[e];
    if (head < rotating_heads) {  // the same for all lanes of a head
      Float8 a = unpack(piece.a), b = unpack(piece.b);
      const float* norm = norm_of(head);
      if (kNorms && norm) {
        if constexpr (kEach > 1) load_norm(norm);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < kVec; ++i) squares += a.v[i] * a.v[i] + b.v[i] * b.v[i];
        const unsigned lanes = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(lanes, squares, step);
        const float scale = rsqrtf(squares * job.inverse_columns + job.eps);
        multiply(a, scale, a_weights);
        multiply(b, scale, b_weights);
      }
      if (lane < pairs) rotate(a, b, cosine, sine);
      piece = {pack(a), pack(b)};
    }
    if (head >= all_heads) break;
    auto* to =
        reinterpret_cast<uint4*>(head < job.heads ? heads + head * job.head_dim : place.head(head - job.heads));
    if (to && has_first) to[first] = piece.a;
    if (to && has_second) to[second] = piece.b;
  }
}

// Where the halves of a pair are not whole vectors apart (head_dim 8, odd rotary widths): a warp per head.
constexpr int kPlainWarps = 4;
__global__ void __launch_bounds__(kPlainWarps * 32) rope_store_plain(const RopeJob job) {
  let_next_start();
  __shared__ float values[kPlainWarps][kMaxHeadDim];
  const int row = int(blockIdx.x), head = int(blockIdx.y * kPlainWarps + threadIdx.x / 32);
  const int lane = int(threadIdx.x % 32), half = job.rotary / 2;
  const int position = job.positions[row];
  const Place place = place_of(job, row, position);
  wait_for_previous();
  if (head >= job.heads + 2 * job.kv_heads) return;

  auto* at = job.qkv + row * job.stride + head * job.head_dim;
  float* x = values[threadIdx.x / 32];
  const bool is_q = head < job.heads, rotates = head < job.heads + job.kv_heads;
  const float* norm = is_q ? job.q_norm : rotates ? job.k_norm : nullptr;
  float squares = 0;
  for (int i = lane; i < job.head_dim; i += 32) {
    x[i] = __bfloat162float(at[i]);
    squares += x[i] * x[i];
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  if (norm) {
    const float scale = rsqrtf(squares * job.inverse_columns + job.eps);
    for (int i = lane; i < job.head_dim; i += 32) x[i] *= scale * __ldg(norm + i);
  }
  __syncwarp();
  auto* to = is_q ? at : place.head(head - job.heads);
  if (!to) return;
  for (int i = lane; i < job.head_dim; i += 32) {
    float value = x[i];
    if (rotates && i < job.rotary) {
      const float2 t = turn(job, position, i < half ? i : i - half);
      value = i < half ? value * t.x - x[i + half] * t.y : value * t.x + x[i - half] * t.y;
    }
    to[i] = __float2bfloat16_rn(value);
  }
}

template <int kLanes, int kEach>
void launch_vectors(const Context& context, const RopeJob& job, int rows) {
  const int items = (job.heads + 2 * job.kv_heads) * kLanes, share = kThreads * kEach;
  const bool norms = job.q_norm || job.k_norm;
  launch(context, norms ? rope_store_vectors<kLanes, true, kEach> : rope_store_vectors<kLanes, false, kEach>,
         dim3(unsigned(rows), unsigned((items + share - 1) / share)), dim3(kThreads), 0, job);
}

// Few rows are spread over many CTAs. With many, three heads a thread share their angles and make one CTA of
// Llama's 48 heads of 128. One head / three, µs at 1, 128, 2,048, 8,192 rows: 0.80 / 1.17, 1.79 / 2.05, 15.2
// / 15.5, 55.0 / 52.7. Other CTA sizes (64 to 384 threads) and loading the row before the angles lost.
constexpr int kFewRows = 1024;
template <int kLanes>
void launch_vectors(const Context& context, const RopeJob& job, int rows) {
  rows <= kFewRows ? launch_vectors<kLanes, 1>(context, job, rows)
                   : launch_vectors<kLanes, 3>(context, job, rows);
}

}  // namespace

void rope_store_kv(const Context& context, const RopeStoreArgs& a) {
  const KvGeometry& g = a.geometry;
  check_vectors(a.qkv);
  CHECK(g.dtype == DType::bf16 && g.head_dim % kVec == 0 && g.head_dim <= kMaxHeadDim,
        "head_dim: a multiple of 8 up to 256");
  CHECK(a.rotary >= 0 && a.rotary % 2 == 0 && a.rotary <= g.head_dim);
  CHECK(a.qkv.cols == int64_t(a.heads + 2 * g.kv_heads) * g.head_dim);
  const int rows = a.batch.tokens;
  if (rows == 0) return;
  const KvRows lie(g);
  const RopeJob job = {.qkv = a.qkv.row<__nv_bfloat16>(0),
                       .stride = a.qkv.stride,
                       .positions = a.batch.positions,
                       .row_sequence = a.batch.row_sequence,
                       .table = a.batch.tables[a.kv.group],
                       .table_stride = a.batch.table_stride,
                       .layer = a.kv.pool + size_t(lie.layer_row(a.kv.layer_in_group)) * size_t(g.head_dim) * 2,
                       .block_bytes = a.kv.block_bytes,
                       .value_offset = lie.value_rows() * g.head_dim,
                       .block_tokens = g.block_tokens,
                       .heads = a.heads,
                       .kv_heads = g.kv_heads,
                       .head_dim = g.head_dim,
                       .rotary = a.rotary,
                       .q_norm = a.q_norm,
                       .k_norm = a.k_norm,
                       .inv_freq = a.inv_freq,
                       .eps = a.norm_eps,
                       .inverse_columns = 1 / float(g.head_dim),
                       .magnitude = a.rope_magnitude};
  if (a.rotary % (2 * kVec) != 0) {
    const int heads = a.heads + 2 * g.kv_heads;
    launch(context, rope_store_plain, dim3(rows, (heads + kPlainWarps - 1) / kPlainWarps),
           dim3(kPlainWarps * 32), 0, job);
    return;
  }
  if (g.head_dim <= 32) return launch_vectors<2>(context, job, rows);
  if (g.head_dim <= 64) return launch_vectors<4>(context, job, rows);
  if (g.head_dim <= 128) return launch_vectors<8>(context, job, rows);
  launch_vectors<16>(context, job, rows);
}

}  // namespace sluice::cuda
