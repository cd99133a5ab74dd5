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
int tune_rope_threads = 0, tune_rope_few = 64;
namespace {

constexpr int kMaxHeadDim = 256;

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
  bool few;  // rows: latency counts
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

// kLanes threads per head, two vectors each: the halves of eight rotated pairs, or two vectors that pass.
template <int kLanes, bool kNorms>
__global__ void __launch_bounds__(512) rope_store_vectors(const RopeJob job) {
  let_next_start();
  __shared__ __align__(16) float cosines[kMaxHeadDim / 2], sines[kMaxHeadDim / 2];
  const int row = int(blockIdx.x), item = int(blockIdx.y * blockDim.x + threadIdx.x);
  const int head = item / kLanes, lane = item % kLanes, pairs = job.rotary / (2 * kVec);
  const bool is_q = head < job.heads, rotates = head < job.heads + job.kv_heads;
  const bool exists = head < job.heads + 2 * job.kv_heads;
  const int first = lane < pairs ? lane : job.rotary / kVec + 2 * (lane - pairs);
  const int second = lane < pairs ? lane + pairs : first + 1;
  const bool has_first = exists && first * kVec < job.head_dim,
             has_second = exists && second * kVec < job.head_dim;

  auto* at = job.qkv + row * job.stride + head * job.head_dim;
  uint4 a_bits{}, b_bits{};
  const auto load = [&] {
    wait_for_previous();
    if (has_first) a_bits = reinterpret_cast<const uint4*>(at)[first];
    if (has_second) b_bits = reinterpret_cast<const uint4*>(at)[second];
  };
  if (!job.few) load();
  const int position = job.positions[row];
  const Place place = place_of(job, row, position);
  const float* norm = is_q ? job.q_norm : rotates ? job.k_norm : nullptr;
  Float8 a_weight{}, b_weight{};
  if constexpr (kNorms) {
    if (norm && has_first) a_weight = load_weights_here(norm + first * kVec);
    if (norm && has_second) b_weight = load_weights_here(norm + second * kVec);
  }
  for (int i = int(threadIdx.x); i < job.rotary / 2; i += int(blockDim.x)) {
    const float2 t = turn(job, position, i);
    cosines[i] = t.x, sines[i] = t.y;
  }
  if (job.few) load();
  __syncthreads();
  if (rotates) {  // the same for all lanes of a head
    Float8 a = unpack(a_bits), b = unpack(b_bits);
    if (kNorms && norm) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kVec; ++i) squares += a.v[i] * a.v[i] + b.v[i] * b.v[i];
      const unsigned lanes = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(lanes, squares, step);
      const float scale = rsqrtf(squares * job.inverse_columns + job.eps);
#pragma unroll
      for (int i = 0; i < kVec; ++i) a.v[i] *= scale * a_weight.v[i], b.v[i] *= scale * b_weight.v[i];
    }
    if (lane < pairs) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float c = cosines[lane * kVec + i], s = sines[lane * kVec + i], low = a.v[i], high = b.v[i];
        a.v[i] = low * c - high * s;
        b.v[i] = high * c + low * s;
      }
    }
    a_bits = pack(a), b_bits = pack(b);
  }
  auto* to = is_q ? at : exists ? place.head(head - job.heads) : nullptr;
  if (!to) return;
  if (has_first) reinterpret_cast<uint4*>(to)[first] = a_bits;
  if (has_second) reinterpret_cast<uint4*>(to)[second] = b_bits;
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

template <int kLanes>
void launch_vectors(const Context& context, const RopeJob& job, int rows) {
  const int items = (job.heads + 2 * job.kv_heads) * kLanes;
  const int threads = std::min(tune_rope_threads ? tune_rope_threads : 128, (items + 31) / 32 * 32);
  launch(context,
         job.q_norm || job.k_norm ? rope_store_vectors<kLanes, true> : rope_store_vectors<kLanes, false>,
         dim3(unsigned(rows), unsigned((items + threads - 1) / threads)), dim3(unsigned(threads)), 0, job);
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
                       .magnitude = a.rope_magnitude,
                       .few = rows <= tune_rope_few};
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
