// A tile is what a warp takes at a time: 16 tokens in full, 32 in 8 bits, 64 in int4, about equally many bytes.
// So as much is under way whatever the precision, and what a tile costs besides is paid for as often per byte.
//
// Strips lie as the products want them (kv_tiers/strip.h). Their numbers become half precision, in which small
// integers are exact and whose conversions are one instruction for two; scales never touch them:
// - of a key's token: its score is multiplied; of a key's channel (int4): the query's, once per tile, and the
// minima
//   are a product with the query of their own, that the scores begin with;
// - of a value's token: its weight is multiplied; minima times weights are a sum that all channels share.
// Weights are lifted by 2^12: times a scale of 2^-7 they would else be too small for half precision where a
// context is long.
#include <cuda_fp16.h>

#include "tensor/cuda/attention/decode_join.h"
#include "tensor/cuda/attention/decode_tiered.h"
#include "tensor/cuda/device/launch.h"
#include "tensor/cuda/kv_tiers/strip.h"
#include "tensor/cuda/ptx/barrier.h"

namespace sluice::cuda {
namespace {

constexpr int kLift = 12;
constexpr int kMostColumns = 8;  // query heads per kv head

template <int width>
constexpr int kStageBytes = std::max(2 * TileLayout<width>::kBytes,
                                     std::max(Strip<width>::kHalfBytes, Strip<width>::kBytes4));

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ float load_shared_half(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return __half2float(__ushort_as_half(v));
}
__device__ __forceinline__ float2 load_shared_half2(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return __half22float2(*reinterpret_cast<const __half2*>(&v));
}

__device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// A fragment's registers from its bytes. 0x6400 is 1024, whose last place is 1.
template <bool fp8>
__device__ __forceinline__ void unpack8(uint32_t (&a)[4], uint32_t low, uint32_t high) {
  if constexpr (fp8) {
    const auto two = [](uint32_t bytes) {
      uint32_t d;
      asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(d) : "r"(bytes));
      return d;
    };
    a[0] = two(low), a[1] = two(low >> 16), a[2] = two(high), a[3] = two(high >> 16);
  } else {
    constexpr uint32_t kMagic = 0x64646464, kZero = 0x64806480;  // 1024 + 128
    a[0] = subtract(__byte_perm(low, kMagic, 0x4140), kZero);
    a[1] = subtract(__byte_perm(low, kMagic, 0x4342), kZero);
    a[2] = subtract(__byte_perm(high, kMagic, 0x4140), kZero);
    a[3] = subtract(__byte_perm(high, kMagic, 0x4342), kZero);
  }
}
// From its nibbles: where they are, in the last places of half precision, numbers are q * 2^-24 in the upper
// eight rows and q * 2^-20 in the lower, too small to be normal, which the products take as they are. So
// nothing is left to do but to mask. (To make them normal took as many instructions again, and twice as long in
// all.)
constexpr float units4(bool lower) { return lower ? 0x1p-20f : 0x1p-24f; }
__device__ __forceinline__ void unpack4(uint32_t (&a)[4], uint32_t word) {
  const uint32_t next = word >> 8;
  a[0] = word & 0x000f000f;
  a[1] = word & 0x00f000f0;
  a[2] = next & 0x000f000f;
  a[3] = next & 0x00f000f0;
}

// What a warp reads next: part of the block `ref`, from position `first` on, of the fragment numbered so. The
// last has the number -1.
struct TierTile {
  int fragment, first;
  KvTier tier;
};

// A Walk that knows which blocks a fragment has: plans are by weight (plan.h).
struct TierWalk : Walk {
  int begin_block = 0, end_block = 0;  // of this fragment

  __device__ explicit TierWalk(const TieredArgs& a) : Walk(a) { find(a, true); }
  __device__ void advance(const TieredArgs& a) {
    const int before = segment;
    Walk::advance(a);
    find(a, segment != before);
  }

 private:
  __device__ void find(const TieredArgs& a, bool enters) {
    begin_block = end_block = 0;
    if (done()) return;
    const DecodeSegment& s = a.shares[blockIdx.x].segments[segment];
    begin_block = enters ? s.begin_block : e.first_block;
    end_block = left <= e.chunks - chunk ? s.end_block : e.end_block;
  }
};

// A warp's stream of loads. Block b of a context has as many tiles as a slot has quarters in it, and the warps
// of a CTA take those of a tier in turn: at most one of each block.
template <int width, int stages>
struct TierLoader {
  using S = Strip<width>;
  static constexpr int kWarps = warps_of(width);
  static_assert(kWarps % kSlotUnits == 0);

  TierWalk at;
  int fragment = 0;
  int base = 0;  // the first of the 32 blocks that `mine` and `refs` are of
  uint32_t mine = 0;
  KvRef refs = kNoKvRef, next_refs = kNoKvRef;  // lane i: of block base + i; and + 32
  uint32_t ring;
  int slot = 0;

  __device__ TierLoader(const TieredArgs& a, uint32_t ring) : at(a), ring(ring) { enter(a); }

  __device__ static int tile_of(int block, int units) {
    return (int(threadIdx.x) / 32 - block * units) & (kWarps - 1);
  }
  __device__ KvRef ref_of(const TieredArgs& a, int block) const {
    return block < at.end_block
               ? a.table[int64_t(at.e.sequence) * a.table_stride + at.head * a.head_stride + block]
               : kNoKvRef;
  }
  __device__ void enter(const TieredArgs& a) {
    base = at.begin_block;
    next_refs = ref_of(a, base + int(threadIdx.x) % 32);
    look_up(a);
  }
  __device__ void look_up(const TieredArgs& a) {
    const int b = base + int(threadIdx.x) % 32;
    refs = next_refs;
    next_refs = ref_of(a, b + 32);
    bool has = false;
    if (refs >= 0) {
      const int units = kv_units(kv_tier(refs)), tokens = kStripTokens / units;
      const int tile = tile_of(b, units), first = b * kStripTokens + tile * tokens;
      has = tile < units && first < at.e.end && first + tokens > at.e.begin;
    }
    mine = __ballot_sync(~0u, has);
  }

  // Starts the next tile's copies, if there is one; always ends a group, so that groups count tiles.
  __device__ TierTile next(const TieredArgs& a) {
    while (mine == 0 && !at.done()) {
      base += 32;
      if (base < at.end_block) {
        look_up(a);
      } else {
        at.advance(a);
        ++fragment;
        enter(a);
      }
    }
    TierTile tile{-1, 0, KvTier::full};
    if (mine != 0) {
      const int i = __ffs(int(mine)) - 1, block = base + i;
      mine &= mine - 1;
      const KvRef ref = __shfl_sync(~0u, refs, i);
      tile.fragment = fragment;
      tile.tier = kv_tier(ref);
      const int units = kv_units(tile.tier), part = tile_of(block, units);
      tile.first = block * kStripTokens + part * (kStripTokens / units);
      const uint32_t to = ring + uint32_t(slot * kStageBytes<width>);
      if (tile.tier == KvTier::full)
        copy_tile<width>(a, at.e, at.head, ref, tile.first, to);
      else
        copy_strip(a, ref, part, to);
    }
    ptx::copy_async_commit();
    slot = slot + 1 == stages ? 0 : slot + 1;
    return tile;
  }

  __device__ void copy_strip(const TieredArgs& a, KvRef ref, int part, uint32_t to) const {
    const bool int4 = kv_tier(ref) == KvTier::int4;
    const int bytes = int4 ? S::kBytes4 : S::kHalfBytes, lane = int(threadIdx.x) % 32;
    const int64_t strip = int64_t(a.first_strip + at.head) * (int4 ? S::kBytes4 : 2 * S::kHalfBytes);
    const std::byte* from = a.pool + kv_first_unit(ref) * a.quarter_bytes + strip + part * bytes + lane * 16;
    to += uint32_t(lane * 16);
    constexpr int kCopies = S::kHalfBytes / 512;  // that all lanes make, of the smaller
    static_assert(S::kBytes4 >= S::kHalfBytes);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) ptx::copy_async_16(to + uint32_t(i * 512), from + i * 512, true);
#pragma unroll
    for (int i = kCopies; i * 512 < S::kBytes4; ++i)
      if (i * 512 + lane * 16 < bytes) ptx::copy_async_16(to + uint32_t(i * 512), from + i * 512, true);
  }
};

template <int width>
struct TierAttend : Attend<width, 1, kLift> {
  using Base = Attend<width, 1, kLift>;
  using S = Strip<width>;
  using Base::kSteps, Base::o, Base::q;

  uint32_t half_q[kSteps][2];
  float shift[2];  // of all channels of the two heads: this lane's share
  bool in_units4;  // o is: see unpack4

  // Kept in half precision alone, which says of a bf16 number all that matters; registers are short.
  __device__ void load_q(const DecodeArgs& a, const Walk& w) {
    Base::load_q(a, w);
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        half_q[k][i] =
            ptx::pack_half(__uint_as_float(q[0][k][i] << 16), __uint_as_float(q[0][k][i] & 0xffff0000u));
  }
  __device__ void clear() {
    Base::clear();
    shift[0] = shift[1] = 0;
    in_units4 = false;
  }
  // Rare: a warp meets the blocks of a context by age.
  __device__ __forceinline__ void change_units(bool to_units4) {
    if (in_units4 == to_units4) return;
    in_units4 = to_units4;
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][k][i] *= to_units4 ? units4(i >= 2) : 1 / units4(i >= 2);
  }

  template <int scores>
  __device__ __forceinline__ void weigh(const DecodeArgs& a, float (&x)[1][scores], int first,
                                        const DecodeEntry& e) {
    float shrink[1][2];
    Base::weigh(a, x, shrink, first, e);
    shift[0] *= shrink[0][0], shift[1] *= shrink[0][1];
  }
  __device__ __forceinline__ void full(const DecodeArgs& a, uint32_t stage, int first, const DecodeEntry& e) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&half_q[k][i]));
        q[0][k][i] = ptx::pack_bf16(two.x, two.y);
      }
    float shrink[1][2];
    Base::tile(a, stage, first, e, shrink);
    shift[0] *= shrink[0][0], shift[1] *= shrink[0][1];
  }
  // Weights of 16 tokens, times the scales of theirs, as the products' second operand.
  __device__ __forceinline__ static void as_operand(uint32_t (&p)[2], const float* x, float scale,
                                                    float scale_8) {
    constexpr float kMost = 65504;  // of half precision
    p[0] = ptx::transpose_8x8(ptx::pack_half(fminf(x[0] * scale, kMost), fminf(x[1] * scale, kMost)));
    p[1] = ptx::transpose_8x8(ptx::pack_half(fminf(x[2] * scale_8, kMost), fminf(x[3] * scale_8, kMost)));
  }

  // Two groups of 16 tokens at a time: while one's product is under way, so is the other's, and their softmax
  // is one.
  static constexpr int kPair = 2 * S::kGroup;
  static_assert(kPair == S::kHalf);

  template <bool fp8>
  __device__ __forceinline__ void bits8(const DecodeArgs& a, uint32_t stage, int first, const DecodeEntry& e) {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t keys = stage + uint32_t(lane * 16);
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      uint4 unit[2];
#pragma unroll
      for (int g = 0; g < 2; ++g) unit[g] = load_shared(keys + uint32_t(g * S::kGroup8 + i * 512));
      uint32_t k[4];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        unpack8<fp8>(k, unit[g].x, unit[g].y);
        ptx::mma_16x8x16_half(s[g], k, half_q[2 * i][0], half_q[2 * i][1]);
      }
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        unpack8<fp8>(k, unit[g].z, unit[g].w);
        ptx::mma_16x8x16_half(s[g], k, half_q[2 * i + 1][0], half_q[2 * i + 1][1]);
      }
    }
    const uint32_t scales = stage + uint32_t(S::kKeyScales + lane / 4 * 2);
    float x[1][8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float scale = load_shared_half(scales + uint32_t(i / 2 * 16));
      x[0][i] = s[i / 4][i % 4] * scale;
      x[0][i + 1] = s[i / 4][i % 4 + 1] * scale;
    }
    weigh(a, x, first, e);
    const uint32_t value_scales = scales + S::kValueScales - S::kKeyScales;
    uint32_t p[2][2];
#pragma unroll
    for (int g = 0; g < 2; ++g)
      as_operand(p[g], &x[0][4 * g], load_shared_half(value_scales + uint32_t(g * 32)),
                 load_shared_half(value_scales + uint32_t(g * 32 + 16)));
    const uint32_t values = keys + S::kValues8;
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const uint4 unit = load_shared(values + uint32_t(g * S::kGroup8 + i * 512));
        uint32_t v[4];
        unpack8<fp8>(v, unit.x, unit.y);
        ptx::mma_16x8x16_half(o[0][2 * i], v, p[g][0], p[g][1]);
        unpack8<fp8>(v, unit.z, unit.w);
        ptx::mma_16x8x16_half(o[0][2 * i + 1], v, p[g][0], p[g][1]);
      }
    }
  }

  // As many groups of 16 tokens at a time as there are registers for.
  static constexpr int kGroups4 = width > 128 ? 2 : 4;

  __device__ __forceinline__ void bits4(const DecodeArgs& a, uint32_t stage, int first, const DecodeEntry& e) {
    constexpr int kTokens = kGroups4 * S::kGroup;
    const int lane = int(threadIdx.x) % 32;
    uint32_t scaled[kSteps][2];
    float minima[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint4 channels = load_shared(stage + uint32_t(S::kChannels + (k * 4 + lane % 4) * 16));
      scaled[k][0] = multiply(half_q[k][0], channels.x);
      scaled[k][1] = multiply(half_q[k][1], channels.y);
      const uint32_t rows[4] = {channels.z, channels.z, channels.w, channels.w};  // all 16 alike
      ptx::mma_16x8x16_half(minima[k % 2], rows, half_q[k][0], half_q[k][1]);
    }
    minima[0][0] += minima[1][0], minima[0][1] += minima[1][1];  // the rows are alike
#pragma unroll 1
    for (int part = 0; part < kStripTokens / kTokens; ++part, first += kTokens) {
      if (first >= e.end || first + kTokens <= e.begin) continue;
      const uint32_t keys = stage + uint32_t(part * kGroups4 * S::kGroup4 + lane * 16);
      float s[kGroups4][4];
#pragma unroll
      for (int g = 0; g < kGroups4; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[g][i] = 0;
#pragma unroll
      for (int i = 0; i < kSteps / 4; ++i) {
        uint4 unit[kGroups4];
#pragma unroll
        for (int g = 0; g < kGroups4; ++g) unit[g] = load_shared(keys + uint32_t(g * S::kGroup4 + i * 512));
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#pragma unroll
          for (int g = 0; g < kGroups4; ++g) {
            uint32_t k[4];
            unpack4(k, w == 0 ? unit[g].x : w == 1 ? unit[g].y : w == 2 ? unit[g].z : unit[g].w);
            ptx::mma_16x8x16_half(s[g], k, scaled[4 * i + w][0], scaled[4 * i + w][1]);
          }
        }
      }
      float x[1][4 * kGroups4];
#pragma unroll
      for (int i = 0; i < 4 * kGroups4; ++i)
        x[0][i] = s[i / 4][i % 4] * (1 / units4(i % 4 >= 2)) + minima[0][i % 2];
      weigh(a, x, first, e);
      const uint32_t tokens = stage + uint32_t(S::kTokens + (part * kTokens + lane / 4) * 4);
      uint32_t p[kGroups4][2];
#pragma unroll
      for (int g = 0; g < kGroups4; ++g) {
        const float2 token = load_shared_half2(tokens + uint32_t(g * 64));  // scale, minimum
        const float2 token_8 = load_shared_half2(tokens + uint32_t(g * 64 + 32));
        shift[0] += x[0][4 * g] * token.y + x[0][4 * g + 2] * token_8.y;
        shift[1] += x[0][4 * g + 1] * token.y + x[0][4 * g + 3] * token_8.y;
        as_operand(p[g], &x[0][4 * g], token.x, token_8.x);
      }
      const uint32_t values = keys + S::kValues4;
#pragma unroll
      for (int i = 0; i < kSteps / 4; ++i) {
#pragma unroll
        for (int g = 0; g < kGroups4; ++g) {
          const uint4 unit = load_shared(values + uint32_t(g * S::kGroup4 + i * 512));
          const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            uint32_t v[4];
            unpack4(v, words[w]);
            ptx::mma_16x8x16_half(o[0][4 * i + w], v, p[g][0], p[g][1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void tile(const DecodeArgs& a, uint32_t stage, const TierTile& t,
                                       const DecodeEntry& e) {
    change_units(t.tier == KvTier::int4);
    switch (t.tier) {
      case KvTier::full:
        return full(a, stage, t.first, e);
      case KvTier::int8:
        return bits8<false>(a, stage, t.first, e);
      case KvTier::fp8:
        return bits8<true>(a, stage, t.first, e);
      case KvTier::int4:
        return bits4(a, stage, t.first, e);
    }
  }

  __device__ void add_shift() {
    change_units(false);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int other = 4; other < 32; other *= 2) shift[j] += __shfl_xor_sync(~0u, shift[j], other);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][k][i] += shift[i % 2];
  }
};

// Of a multiprocessor, whose registers they share.
constexpr int tiered_ctas(int width) { return width >= 128 ? 1 : 3; }

template <int width, int stages>
__global__ void __launch_bounds__(warps_of(width) * 32, tiered_ctas(width))
    decode_tiered_kernel(const __grid_constant__ TieredArgs a) {
  extern __shared__ __align__(128) std::byte memory[];
  constexpr int kWarps = warps_of(width);
  constexpr int kRingBytes = stages * kStageBytes<width>;
  wait_for_previous();
  let_next_start();
  const int quota = a.shares[blockIdx.x].quota;
  const uint32_t ring = ptx::shared_address(memory) + threadIdx.x / 32 * kRingBytes;
  Meeting<width, 1> meeting(memory + kWarps * kRingBytes, a.group);
  TierLoader<width, stages> loader(a, ring);
  Walk walk(a);
  TierAttend<width> attend;
  TierTile ahead[stages - 1];  // on their way
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) ahead[i] = loader.next(a);
  if (walk.done()) return;
  attend.load_q(a, walk);

  int slot = 0;
#pragma unroll 1
  for (int fragment = 0;; ++fragment) {
    attend.clear();
#pragma unroll 1
    while (ahead[0].fragment == fragment) {
      ptx::copy_async_wait<stages - 2>();
      __syncwarp();  // the tile is there for all lanes; and all are done with the one before, whose place is
                     // refilled
      const TierTile tile = ahead[0];
#pragma unroll
      for (int i = 0; i + 1 < stages - 1; ++i) ahead[i] = ahead[i + 1];
      ahead[stages - 2] = loader.next(a);
      attend.tile(a, ring + uint32_t(slot * kStageBytes<width>), tile, walk.e);
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
    attend.add_shift();
    meeting.put(a, attend);
    Walk next = walk;
    next.advance(a);
    if (!next.done()) attend.load_q(a, next);
    __syncthreads();
    finish(a, walk, quota, meeting);
    if (next.done()) return;
    walk = next;
  }
}

constexpr size_t kMostShared = 227 << 10;  // of a CTA

template <int width, int stages>
TieredKernel with_stages(int group) {
  constexpr int kWarps = warps_of(width);
  return {decode_tiered_kernel<width, stages>,
          size_t(kWarps * stages * kStageBytes<width>) + Meeting<width, 1>::bytes(group), width, kWarps * 32};
}
// With more query heads the meeting place needs the room of a stage.
template <int width>
TieredKernel choose(int group) {
  const TieredKernel three = with_stages<width, 3>(group);
  if constexpr (width >= 128) {
    if (three.shared_bytes > kMostShared) return with_stages<width, 2>(group);
  }
  return three;
}

}  // namespace

TieredKernel tiered_kernel(const KvGeometry& geometry, int heads) {
  const int group = heads / geometry.kv_heads;
  if (group > kMostColumns || !strips_support(geometry.block_tokens, geometry.head_dim)) return {};
  switch (geometry.head_dim) {
    case 64:
      return choose<64>(group);
    case 128:
      return choose<128>(group);
    default:
      return choose<256>(group);
  }
}

}  // namespace sluice::cuda
