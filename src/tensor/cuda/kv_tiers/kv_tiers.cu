// A CTA has one head of one layer of a block: its keys and values in shared memory as float32, from whatever
// tier to whatever tier. Bound by memory where it matters little: a step moves a few blocks.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"
#include "tensor/cuda/kv_tiers/strip.h"
#include "tensor/cuda/ptx/mma.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxSequences = 1024;  // of a step (attention/plan.h)

__device__ __forceinline__ float as_half(float x) { return __half2float(__float2half_rn(x)); }

// Keys and values of a head: [2][64][width + 1].
template <int width>
struct Sheet {
  static constexpr int kPitch = width + 1;
  static constexpr size_t kBytes = size_t(2) * kStripTokens * kPitch * sizeof(float);
  float* numbers;

  __device__ float& at(bool value, int token, int channel) const {
    return numbers[(int(value) * kStripTokens + token) * kPitch + channel];
  }
  // Of a fragment: `step` counts 16 channels, `group` 16 tokens.
  __device__ float& at(bool value, int group, int step, int lane, int r, int low) const {
    const int row = lane / 4 + 8 * (r & 1), column = 2 * (lane % 4) + 8 * (r >> 1) + low;
    return value ? at(true, group * 16 + column, step * 16 + row)
                 : at(false, group * 16 + row, step * 16 + column);
  }
};

struct Head {
  const KvGeometry& g;
  std::byte* pool;
  int64_t block_bytes;
  int layer, head;

  __device__ std::byte* block(KvRef ref) const {
    return pool + kv_first_unit(ref) * (block_bytes / kSlotUnits);
  }
  template <int width>
  __device__ uint4* full(KvRef ref, bool value) const {  // [64][width] bf16
    const int64_t row = ((int64_t(layer) * 2 + value) * g.kv_heads + head) * kStripTokens;
    return reinterpret_cast<uint4*>(block(ref) + row * width * 2);
  }
  template <int width>
  __device__ std::byte* strip(KvRef ref) const {
    return block(ref) + (int64_t(layer) * g.kv_heads + head) * strip_bytes(kv_tier(ref), width);
  }
};

// -- From memory to the sheet

template <int width>
__device__ void read_full(const Sheet<width>& sheet, const Head& from, KvRef ref) {
  for (int i = int(threadIdx.x); i < 2 * kStripTokens * width / 8; i += kThreads) {
    const int value = i / (kStripTokens * width / 8), piece = i % (kStripTokens * width / 8);
    const uint4 v = from.full<width>(ref, value)[piece];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float* to = &sheet.at(value, piece * 8 / width, piece * 8 % width);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[2 * w] = __uint_as_float(words[w] << 16);
      to[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
    }
  }
}

// Calls f(is value, group, i, lane, unit) for the units of a strip in 8 bits or, with four times as many
// fragments to a unit, 4.
template <int width, bool int4, typename F>
__device__ void for_each_unit(std::byte* strip, const F& f) {
  using S = Strip<width>;
  constexpr int kUnits = (int4 ? S::kGroup4 : S::kGroup8) / 16;  // of a group's keys
  for (int u = int(threadIdx.x); u < 2 * 4 * kUnits; u += kThreads) {
    const int value = u / (4 * kUnits), group = u / kUnits % 4, unit = u % kUnits;
    std::byte* at = int4 ? strip + value * S::kValues4 + group * S::kGroup4
                         : strip + group / 2 * S::kHalfBytes + value * S::kValues8 + group % 2 * S::kGroup8;
    f(value != 0, group, unit / 32, unit % 32, reinterpret_cast<uint4*>(at) + unit);
  }
}

template <int width>
__device__ __half* scale8(std::byte* strip, bool value, int token) {
  using S = Strip<width>;
  std::byte* half = strip + token / S::kHalf * S::kHalfBytes;
  return reinterpret_cast<__half*>(half + (value ? S::kValueScales : S::kKeyScales)) + token % S::kHalf;
}
// Scale of a key's channel; its minimum is four further.
template <int width>
__device__ __half* channel4(std::byte* strip, int channel) {
  const int j = channel % 8 / 2, high = channel / 8 % 2;
  return reinterpret_cast<__half*>(strip + Strip<width>::kChannels) + (channel / 16 * 4 + j) * 8 + high * 2 +
         channel % 2;
}
template <int width>
__device__ __half2* token4(std::byte* strip, int token) {
  return reinterpret_cast<__half2*>(strip + Strip<width>::kTokens) + token;
}

template <int width>
__device__ void read8(const Sheet<width>& sheet, std::byte* strip, bool fp8) {
  for_each_unit<width, false>(strip, [&](bool value, int group, int i, int lane, const uint4* unit) {
    const uint4 v = *unit;
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int b = 0; b < 16; ++b) {
      const uint32_t byte = words[b / 4] >> (b % 4 * 8) & 255;
      const float q = fp8 ? __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t(byte), __NV_E4M3)))
                          : float(int(byte) - 128);
      sheet.at(value, group, 2 * i + b / 8, lane, b % 8 / 2, b % 2) = q;
    }
  });
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * kStripTokens * width; i += kThreads) {
    const int value = i / (kStripTokens * width), token = i / width % kStripTokens;
    sheet.at(value, token, i % width) *= __half2float(*scale8<width>(strip, value, token));
  }
}

template <int width>
__device__ void read4(const Sheet<width>& sheet, std::byte* strip) {
  for_each_unit<width, true>(strip, [&](bool value, int group, int i, int lane, const uint4* unit) {
    const uint4 v = *unit;
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int n = 0; n < 8; ++n)
        sheet.at(value, group, 4 * i + w, lane, n % 4, n / 4) = float(words[w] >> (4 * n) & 15);
  });
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * kStripTokens * width; i += kThreads) {
    const int value = i / (kStripTokens * width), token = i / width % kStripTokens, channel = i % width;
    const __half* key = channel4<width>(strip, channel);
    const __half2 of_token = *token4<width>(strip, token);
    const float scale = __half2float(value ? of_token.x : key[0]),
                min = __half2float(value ? of_token.y : key[4]);
    float& x = sheet.at(value, token, channel);
    x = __fadd_rn(min, __fmul_rn(scale, x));
  }
}

// -- From the sheet to memory

template <int width>
__device__ void write_full(const Sheet<width>& sheet, uint4* to, bool value) {
  for (int piece = int(threadIdx.x); piece < kStripTokens * width / 8; piece += kThreads) {
    const float* x = &sheet.at(value, piece * 8 / width, piece * 8 % width);
    to[piece] = {ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(x[4], x[5]),
                 ptx::pack_bf16(x[6], x[7])};
  }
}

struct Extremes {
  float low = INFINITY, high = -INFINITY;
  __device__ void add(float x) { low = fminf(low, x), high = fmaxf(high, x); }
};

// Of a token's row, over the warp.
template <int width>
__device__ Extremes extremes_of(const Sheet<width>& sheet, bool value, int token) {
  Extremes x;
  for (int c = int(threadIdx.x) % 32; c < width; c += 32) x.add(sheet.at(value, token, c));
  for (int other = 16; other > 0; other /= 2) {
    x.low = fminf(x.low, __shfl_xor_sync(~0u, x.low, other));
    x.high = fmaxf(x.high, __shfl_xor_sync(~0u, x.high, other));
  }
  return x;
}

template <int width>
__device__ void write8(const Sheet<width>& sheet, std::byte* strip, bool fp8) {
  const float most = fp8 ? 448 : 127;
  for (int i = int(threadIdx.x) / 32; i < 2 * kStripTokens; i += kWarps) {
    const Extremes x = extremes_of(sheet, i / kStripTokens, i % kStripTokens);
    if (threadIdx.x % 32 == 0)
      *scale8<width>(strip, i / kStripTokens, i % kStripTokens) =
          __float2half_rn(__fdiv_rn(fmaxf(fabsf(x.low), fabsf(x.high)), most));
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * kStripTokens * width; i += kThreads) {
    const int value = i / (kStripTokens * width), token = i / width % kStripTokens;
    const float scale = __half2float(*scale8<width>(strip, value, token));
    float& x = sheet.at(value, token, i % width);
    const float q = scale > 0 ? fminf(fmaxf(__fdiv_rn(x, scale), -most), most) : 0;
    x = fp8 ? q : rintf(q);
  }
  __syncthreads();
  for_each_unit<width, false>(strip, [&](bool value, int group, int i, int lane, uint4* unit) {
    uint32_t words[4] = {};
#pragma unroll
    for (int b = 0; b < 16; ++b) {
      const float q = sheet.at(value, group, 2 * i + b / 8, lane, b % 8 / 2, b % 2);
      const uint32_t byte =
          fp8 ? uint32_t(__nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E4M3)) : uint32_t(int(q) + 128);
      words[b / 4] |= byte << (b % 4 * 8);
    }
    *unit = {words[0], words[1], words[2], words[3]};
  });
}

__device__ __forceinline__ float scale_of(const Extremes& x) {
  return as_half(__fdiv_rn(__fsub_rn(x.high, as_half(x.low)), 15.0f));
}

template <int width>
__device__ void write4(const Sheet<width>& sheet, std::byte* strip) {
  for (int token = int(threadIdx.x) / 32; token < kStripTokens; token += kWarps) {
    const Extremes x = extremes_of(sheet, true, token);
    if (threadIdx.x % 32 == 0)
      *token4<width>(strip, token) = __halves2half2(__float2half_rn(scale_of(x)), __float2half_rn(x.low));
  }
  for (int channel = int(threadIdx.x); channel < width; channel += kThreads) {
    Extremes x;
    for (int token = 0; token < kStripTokens; ++token) x.add(sheet.at(false, token, channel));
    __half* to = channel4<width>(strip, channel);
    to[0] = __float2half_rn(scale_of(x)), to[4] = __float2half_rn(x.low);
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * kStripTokens * width; i += kThreads) {
    const int value = i / (kStripTokens * width), token = i / width % kStripTokens, channel = i % width;
    const __half* key = channel4<width>(strip, channel);
    const __half2 of_token = *token4<width>(strip, token);
    const float scale = __half2float(value ? of_token.x : key[0]),
                min = __half2float(value ? of_token.y : key[4]);
    float& x = sheet.at(value, token, channel);
    x = scale > 0 ? fminf(fmaxf(rintf(__fdiv_rn(__fsub_rn(x, min), scale)), 0), 15) : 0;
  }
  __syncthreads();
  for_each_unit<width, true>(strip, [&](bool value, int group, int i, int lane, uint4* unit) {
    uint32_t words[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int n = 0; n < 8; ++n)
        words[w] |= uint32_t(sheet.at(value, group, 4 * i + w, lane, n % 4, n / 4)) << (4 * n);
    *unit = {words[0], words[1], words[2], words[3]};
  });
}

template <int width>
__device__ void read_small(const Sheet<width>& sheet, const Head& from, KvRef ref) {
  std::byte* strip = from.strip<width>(ref);
  if (kv_tier(ref) == KvTier::int4)
    read4<width>(sheet, strip);
  else
    read8<width>(sheet, strip, kv_tier(ref) == KvTier::fp8);
}

__device__ void copy(uint4* to, const uint4* from, int bytes) {
  for (int i = int(threadIdx.x); i < bytes / 16; i += kThreads) to[i] = from[i];
}

struct MoveJob {
  const KvMove* moves;
  KvGeometry geometry;
  std::byte* pool;
  int64_t block_bytes;
  int64_t bounds;  // bytes at a block's end; 0: none
};

// The bounds of a head's keys go with the block.
__device__ void copy_bounds(const MoveJob& job, const KvMove& move, int layer_head) {
  const int bytes = job.geometry.head_dim * 4;
  const auto at = [&](KvRef ref) {
    const int64_t end = (kv_first_unit(ref) + kv_units(kv_tier(ref))) * (job.block_bytes / kSlotUnits);
    return reinterpret_cast<uint4*>(job.pool + end - job.bounds + int64_t(layer_head) * bytes);
  };
  copy(at(move.to), at(move.from), bytes);
}

// Grid: [layers * kv heads, moves].
template <int width>
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveJob job) {
  extern __shared__ __align__(16) float memory[];
  let_next_start();
  wait_for_previous();
  const KvMove move = job.moves[blockIdx.y];
  const Head head{job.geometry, job.pool, job.block_bytes, int(blockIdx.x) / job.geometry.kv_heads,
                  int(blockIdx.x) % job.geometry.kv_heads};
  const KvTier from = kv_tier(move.from), to = kv_tier(move.to);
  if (job.bounds > 0) copy_bounds(job, move, int(blockIdx.x));
  if (from == to) {
    if (from != KvTier::full)
      return copy(reinterpret_cast<uint4*>(head.strip<width>(move.to)),
                  reinterpret_cast<const uint4*>(head.strip<width>(move.from)), strip_bytes(to, width));
    for (const bool value : {false, true})
      copy(head.full<width>(move.to, value), head.full<width>(move.from, value), kStripTokens * width * 2);
    return;
  }
  const Sheet<width> sheet{memory};
  if (from == KvTier::full)
    read_full(sheet, head, move.from);
  else
    read_small(sheet, head, move.from);
  __syncthreads();
  if (to == KvTier::full) {
    for (const bool value : {false, true}) write_full(sheet, head.full<width>(move.to, value), value);
  } else if (to == KvTier::int4) {
    write4(sheet, head.strip<width>(move.to));
  } else {
    write8(sheet, head.strip<width>(move.to), to == KvTier::fp8);
  }
}

__device__ int blocks_of(const int32_t* kv_lengths, int sequence) {
  return (kv_lengths[sequence] + kStripTokens - 1) / kStripTokens;
}

// One CTA. What follows from one prompt to the next is done by one thread: of prompts there are few.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int32_t* row_starts, const int32_t* kv_lengths, int sequences, Unpacked to) {
  __shared__ int32_t needs[kMaxSequences];  // blocks; 0: has one row
  let_next_start();
  wait_for_previous();
  for (int s = int(threadIdx.x); s < sequences; s += kThreads)
    needs[s] = row_starts[s + 1] - row_starts[s] > 1 ? blocks_of(kv_lengths, s) : 0;
  __syncthreads();
  if (threadIdx.x > 0) return;
  int found = 0, round = 0, used = 0;
  for (int s = 0; s < sequences; ++s) {
    const int blocks = needs[s];
    if (blocks == 0) continue;
    if (used + blocks > to.blocks) ++round, used = 0;
    to.order[found++] = s;
    to.places[s] = {round, used};
    used += blocks;
  }
}

struct UnpackJob {
  const int32_t* kv_lengths;
  const int32_t* table;
  int table_stride;
  KvGeometry geometry;
  int64_t block_bytes;
  int layer, round;
  Unpacked to;
};

// Grid: [blocks, several at a time; sequences with several rows; kv heads].
template <int width>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ UnpackJob job) {
  extern __shared__ __align__(16) float memory[];
  let_next_start();
  wait_for_previous();
  const int sequence = job.to.order[blockIdx.y], blocks = blocks_of(job.kv_lengths, sequence);
  const int2 place = job.to.places[sequence];
  if (place.x != job.round) return;
  const KvRows lie(job.geometry);
  const int32_t* table = job.table + int64_t(sequence) * job.table_stride;
  const Head head{job.geometry, job.to.pool, job.block_bytes, job.layer, int(blockIdx.z)};
  const Sheet<width> sheet{memory};
  for (int i = int(blockIdx.x); i < blocks; i += int(gridDim.x)) {
    const KvRef ref = table[i];
    const bool small = ref >= 0 && kv_tier(ref) != KvTier::full;
    int64_t row = job.to.first_row + (place.y + i) * lie.layer_rows();
    if (!small) row = ref < 0 ? -1 : ref * (job.block_bytes / (width * 2)) + lie.layer_row(job.layer);
    if (blockIdx.z == 0 && threadIdx.x == 0)
      job.to.rows[int64_t(sequence) * job.to.row_blocks + i] = int32_t(row);
    if (!small) continue;
    __syncthreads();  // the sheet is free again
    read_small(sheet, head, ref);
    __syncthreads();
    for (const bool value : {false, true}) {
      const int64_t first = row + (value ? lie.value_rows() : 0) + int64_t(blockIdx.z) * kStripTokens;
      write_full(sheet, reinterpret_cast<uint4*>(job.to.pool + first * width * 2), value);
    }
  }
}

template <typename F>
void with_width(int head_dim, const F& f) {
  if (head_dim == 64) return f(std::integral_constant<int, 64>());
  if (head_dim == 128) return f(std::integral_constant<int, 128>());
  CHECK(head_dim == 256, "no small tiers for this head width");
  f(std::integral_constant<int, 256>());
}

}  // namespace

void kv_tiers_prepare(const KvGeometry& geometry) {
  CHECK(strips_support(geometry.block_tokens, geometry.head_dim), "blocks that small tiers are not made for");
  with_width(geometry.head_dim, [](auto width) {
    for (const void* kernel : {reinterpret_cast<const void*>(move_kernel<width>),
                               reinterpret_cast<const void*>(unpack_kernel<width>)})
      CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(Sheet<width>::kBytes)));
  });
}

void move_blocks(const Context& context, const MoveBlocksArgs& a) {
  const KvGeometry& g = a.geometry;
  CHECK(g.tiered && strips_support(g.block_tokens, g.head_dim), "blocks that small tiers are not made for");
  if (a.batch.move_count == 0) return;
  const MoveJob job{a.batch.moves, g, a.pool, int64_t(a.block_bytes), int64_t(bounds_bytes(g))};
  with_width(g.head_dim, [&](auto width) {
    launch(context, move_kernel<width>,
           dim3(unsigned(g.layers_per_group * g.kv_heads), unsigned(a.batch.move_count)), dim3(kThreads),
           Sheet<width>::kBytes, job);
  });
}

// Two rounds that follow each other hold more than the stretch does.
int most_rounds(const Unpacked& to, int prompt_blocks) {
  return prompt_blocks <= to.blocks ? 1 : 2 * prompt_blocks / to.blocks + 1;
}

void place_prompts(const Context& context, const BatchInput& batch, const Unpacked& to) {
  CHECK(batch.sequences <= kMaxSequences);
  launch(context, place_kernel, dim3(1), dim3(kThreads), 0, batch.row_starts, batch.kv_lengths, batch.sequences,
         to);
}

void unpack_blocks(const Context& context, const BatchInput& batch, const KvGeometry& g, const KvLayer& kv,
                   const Unpacked& to, int round) {
  constexpr int kAtOnce = 64;
  const int prompts = batch.sequences - batch.one_row_sequences;
  const UnpackJob job{batch.kv_lengths,
                      batch.tables[kv.group],
                      batch.table_stride,
                      g,
                      int64_t(kv.block_bytes),
                      kv.layer_in_group,
                      round,
                      to};
  with_width(g.head_dim, [&](auto width) {
    launch(context, unpack_kernel<width>,
           dim3(unsigned(std::min(kAtOnce, to.row_blocks)), unsigned(prompts), unsigned(g.kv_heads)),
           dim3(kThreads), Sheet<width>::kBytes, job);
  });
}

}  // namespace sluice::cuda
