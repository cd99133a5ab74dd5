// AVX2 + FMA + F16C. The instruction set is switched on below, after all headers, and everything is internal to
// this file, so that no AVX2 code can end up in a function that other files share.
//
// Integers: a 32-byte vector is 4 columns of 8 rows. maddubs (u8 x s8, pairs added in 16 bits) is exact only
// while the pair fits 16 bits, so the weights' range decides how often sums are widened to 32 bits (struct
// *Quants below). A block is 4 rows of x times 16 rows of w: 8 sums, 4 weight vectors, one broadcast of x and a
// product fill the 16 registers. The float sums live in L1.
#include <immintrin.h>

#include "tensor/cpu/linear/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace sluice::cpu {
namespace {

constexpr int kMaxRows = 4;  // rows of x in a block
constexpr int kPrefetchBytes = 2048;

[[gnu::always_inline]] inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Scales of 8 rows.
[[gnu::always_inline]] inline __m256 load_scales(const std::byte* p, int64_t i, bool f32) {
  if (f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + i);
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(p) + i)));
}

struct Rows {
  const int8_t* q[kMaxRows];
  const float* scale[kMaxRows];
  const int32_t* unbias[kMaxRows];  // per weight group
  const float* fsum[kMaxRows];
  int64_t step;  // from group to group of the three
};

// A tile as the kernels walk it, block by block. Scales lie in the block, or widened to f32 beside it when many
// rows of x share the work.
struct Tile {
  const std::byte* block;  // quants start here
  int64_t block_bytes;
  const std::byte* scales;
  const std::byte* mins;  // null: none
  int64_t scale_stride;   // from block to block
  bool scales_f32;
  bool prefetch;  // first to touch these weights
  bool biased;    // quants were shifted by Q::kBias
};

// Sums in 16 bits of maddubs products, widened every kPairs products.
// 4 bits: 15 * 127 * 2 * 8 = 30480; 5 bits: 31 * 127 * 2 * 4 = 31496; 6 bits: 63 * 127 * 2 * 2 = 32004.
struct Int4Quants {
  static constexpr bool kNibbles = true, kSigned = false;
  static constexpr int kPairs = 8, kBias = 0;
};
struct Int5Quants {
  static constexpr bool kNibbles = false, kSigned = false;
  static constexpr int kPairs = 4, kBias = 16;
};
struct Int6Quants {
  static constexpr bool kNibbles = false, kSigned = false;
  static constexpr int kPairs = 2, kBias = 32;
};
// All 8 bits: |w| * (x with w's sign), 128 * 127 * 2 = 32512, so each product is widened alone.
struct Int8Quants {
  static constexpr bool kNibbles = false, kSigned = true;
  static constexpr int kPairs = 1, kBias = 0;
};

template <typename Q>
[[gnu::always_inline]] inline __m256i product(__m256i w, __m256i w_abs, __m256i x) {
  if constexpr (Q::kSigned) return _mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}

// The integer dot products of one group: rows of x times both halves of the tile.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void group_dots(const uint8_t* w, const Rows& rows, int64_t column,
                                              __m256i dots[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kQuads = kGroup / 4;
  constexpr int kPairs = Q::kPairs < kQuads ? Q::kPairs : kQuads;
  if constexpr (Q::kNibbles) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sums[kRows][2];
#pragma GCC unroll 8
    for (int j = 0; j < kQuads / 2; ++j) {
      const __m256i w0 = load(w + j * 64), w1 = load(w + j * 64 + 32);
      const __m256i low0 = _mm256_and_si256(w0, low), low1 = _mm256_and_si256(w1, low);
      const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), low);
      const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), low);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const int8_t* q = rows.q[m] + column + j * 4;
        int32_t first, second;
        __builtin_memcpy(&first, q, 4);
        __builtin_memcpy(&second, q + kGroup / 2, 4);
        const __m256i x0 = _mm256_set1_epi32(first), x1 = _mm256_set1_epi32(second);
        const __m256i p0 = _mm256_maddubs_epi16(low0, x0), p1 = _mm256_maddubs_epi16(low1, x0);
        sums[m][0] = j == 0 ? p0 : _mm256_add_epi16(sums[m][0], p0);
        sums[m][1] = j == 0 ? p1 : _mm256_add_epi16(sums[m][1], p1);
        sums[m][0] = _mm256_add_epi16(sums[m][0], _mm256_maddubs_epi16(high0, x1));
        sums[m][1] = _mm256_add_epi16(sums[m][1], _mm256_maddubs_epi16(high1, x1));
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      dots[m][0] = _mm256_madd_epi16(sums[m][0], ones);
      dots[m][1] = _mm256_madd_epi16(sums[m][1], ones);
    }
  } else {
    __m256i sums[kRows][2];
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      const __m256i w0 = load(w + j * 64), w1 = load(w + j * 64 + 32);
      const __m256i a0 = Q::kSigned ? _mm256_abs_epi8(w0) : w0, a1 = Q::kSigned ? _mm256_abs_epi8(w1) : w1;
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        int32_t four;
        __builtin_memcpy(&four, rows.q[m] + column + j * 4, 4);
        const __m256i x = _mm256_set1_epi32(four);
        const __m256i p0 = product<Q>(w0, a0, x), p1 = product<Q>(w1, a1, x);
        const bool fresh = j % kPairs == 0, flush = j % kPairs == kPairs - 1, first = j / kPairs == 0;
        sums[m][0] = fresh ? p0 : _mm256_add_epi16(sums[m][0], p0);
        sums[m][1] = fresh ? p1 : _mm256_add_epi16(sums[m][1], p1);
        if (flush) {
          const __m256i d0 = _mm256_madd_epi16(sums[m][0], ones), d1 = _mm256_madd_epi16(sums[m][1], ones);
          dots[m][0] = first ? d0 : _mm256_add_epi32(dots[m][0], d0);
          dots[m][1] = first ? d1 : _mm256_add_epi32(dots[m][1], d1);
        }
      }
    }
  }
}

// Adds one group's scaled dot products (and mins) to the rows' sums. `i` is the group's place in its block.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void add_group(const Tile& t, const Rows& rows, int64_t block, int i,
                                             const __m256i dots[kRows][2], __m256 sums[kRows][2]) {
  const int64_t g = block * (kBlock / kGroup) + i;
  const std::byte* scales = t.scales + block * t.scale_stride;
  const __m256 s0 = load_scales(scales, i * 16, t.scales_f32),
               s1 = load_scales(scales, i * 16 + 8, t.scales_f32);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    __m256i d0 = dots[m][0], d1 = dots[m][1];
    if constexpr (Q::kBias != 0) {
      if (t.biased) {
        const __m256i of_128 = _mm256_set1_epi32(rows.unbias[m][g * rows.step]);
        const __m256i unbias = _mm256_srai_epi32(of_128, Q::kBias == 16 ? 3 : 2);
        d0 = _mm256_add_epi32(d0, unbias);
        d1 = _mm256_add_epi32(d1, unbias);
      }
    }
    const __m256 x_scale = _mm256_broadcast_ss(rows.scale[m] + (kGroup == 16 ? g / 2 : g) * rows.step);
    sums[m][0] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(d0), s0), x_scale, sums[m][0]);
    sums[m][1] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(d1), s1), x_scale, sums[m][1]);
  }
  if (t.mins) {
    const std::byte* mins = t.mins + block * t.scale_stride;
    const __m256 min0 = load_scales(mins, i * 16, t.scales_f32),
                 min1 = load_scales(mins, i * 16 + 8, t.scales_f32);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 x_sum = _mm256_broadcast_ss(rows.fsum[m] + g * rows.step);
      sums[m][0] = _mm256_fmadd_ps(min0, x_sum, sums[m][0]);
      sums[m][1] = _mm256_fmadd_ps(min1, x_sum, sums[m][1]);
    }
  }
}

// sums[m][half] = the tile's 16 rows times kRows rows of x.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void tile_dots(const Tile& t, const Rows& rows, int64_t blocks,
                                             __m256 sums[kRows][2]) {
  constexpr int kBytes = kGroup * kTileRows / (Q::kNibbles ? 2 : 1);
  for (int m = 0; m < kRows; ++m) sums[m][0] = sums[m][1] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    const std::byte* block = t.block + b * t.block_bytes;
    if (t.prefetch) {
      constexpr int kLines = kBlock / kGroup * (kBytes + kTileRows * 4) / 64;
#pragma GCC unroll 32
      for (int i = 0; i < kLines; ++i)
        _mm_prefetch(reinterpret_cast<const char*>(block) + kPrefetchBytes + i * 64, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kBlock / kGroup; ++i) {
      __m256i dots[kRows][2];
      group_dots<Q, kGroup, kRows>(reinterpret_cast<const uint8_t*>(block) + i * kBytes, rows,
                                   b * kBlock + i * kGroup, dots);
      add_group<Q, kGroup, kRows>(t, rows, b, i, dots, sums);
    }
  }
}

void store_row(float* out, __m256 a, __m256 b, const float* bias, int valid) {
  float v[kTileRows];
  if (valid == kTileRows) {
    if (bias) {
      a = _mm256_add_ps(a, _mm256_loadu_ps(bias));
      b = _mm256_add_ps(b, _mm256_loadu_ps(bias + 8));
    }
    _mm256_storeu_ps(out, a);
    _mm256_storeu_ps(out + 8, b);
    return;
  }
  _mm256_storeu_ps(v, a);
  _mm256_storeu_ps(v + 8, b);
  for (int r = 0; r < valid; ++r) out[r] = bias ? v[r] + bias[r] : v[r];
}

// Where a tile's results go.
struct Out {
  float* data;  // row 0, first column of the tile
  int64_t stride;
  const float* bias;
  int valid;
};

template <typename Q, int kGroup, int kRows>
void integer_block(const Tile& tile, const Job& job, int64_t m, const Out& out) {
  Rows rows;
  rows.step = job.xq.panel;
  for (int i = 0; i < kRows; ++i) {
    const QuantRow r = quant_row(job.xq, m + i);
    rows.q[i] = r.q;
    rows.scale[i] = r.scale;
    rows.unbias[i] = kGroup == 16 ? r.unbias16 : r.unbias32;
    rows.fsum[i] = kGroup == 16 ? r.fsum16 : r.fsum32;
  }
  __m256 sums[kRows][2];
  tile_dots<Q, kGroup, kRows>(tile, rows, job.header->blocks, sums);
  for (int i = 0; i < kRows; ++i) {
    store_row(out.data + (m + i) * out.stride, sums[i][0], sums[i][1], out.bias, out.valid);
  }
}

// Scales and mins of one tile as f32, so that blocks of x rows after the first don't convert them again.
struct WideScales {
  static constexpr int64_t kMaxBlocks = 256;  // K up to 16384
  alignas(32) float data[kMaxBlocks * (kBlock / 16) * kTileRows * 2];
};

template <int kGroup>
void widen_scales(const PackedHeader& h, WideScales& wide, Tile& t) {
  constexpr int kFloats = kBlock / kGroup * kTileRows;
  float* mins = wide.data + h.blocks * kFloats;
  for (int64_t b = 0; b < h.blocks; ++b) {
    for (int i = 0; i < kFloats; i += 8) {
      _mm256_store_ps(wide.data + b * kFloats + i, load_scales(t.scales + b * h.block_bytes, i, false));
      if (t.mins) _mm256_store_ps(mins + b * kFloats + i, load_scales(t.mins + b * h.block_bytes, i, false));
    }
  }
  t.scales = reinterpret_cast<const std::byte*>(wide.data);
  if (t.mins) t.mins = reinterpret_cast<const std::byte*>(mins);
  t.scale_stride = kFloats * 4;
  t.scales_f32 = true;
}

template <typename Q, int kGroup>
void integer_tiles(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  WideScales wide;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const std::byte* p = job.tiles + t * h.tile_bytes;
    Tile tile{p + h.quant_offset, h.block_bytes, p,    h.has_min ? p + h.min_offset : nullptr,
              h.block_bytes,      h.scales_f32,  true, h.bias != 0};
    const Out out{job.out + t * kTileRows, job.out_stride, job.bias ? job.bias + t * kTileRows : nullptr,
                  tile_rows(h, t)};
    int64_t m = job.m_begin;
    for (; m + 4 <= job.m_end; m += 4) {
      integer_block<Q, kGroup, 4>(tile, job, m, out);
      if (m == job.m_begin && job.m_end - m > 8 && !h.scales_f32 && h.blocks <= WideScales::kMaxBlocks) {
        widen_scales<kGroup>(h, wide, tile);
      }
      tile.prefetch = false;
    }
    switch (job.m_end - m) {
      case 3:
        integer_block<Q, kGroup, 3>(tile, job, m, out);
        break;
      case 2:
        integer_block<Q, kGroup, 2>(tile, job, m, out);
        break;
      case 1:
        integer_block<Q, kGroup, 1>(tile, job, m, out);
        break;
      default:
        break;
    }
  }
}

// Float elements: 8 rows of column k.
struct F32 {
  using Element = float;
  [[gnu::always_inline]] static inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
};
struct F16 {
  using Element = uint16_t;
  [[gnu::always_inline]] static inline __m256 load8(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
struct Bf16 {
  using Element = uint16_t;
  [[gnu::always_inline]] static inline __m256 load8(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};

template <typename E, int kRows>
void float_block(const typename E::Element* w, const Job& job, int64_t m, const Out& out) {
  __m256 sums[kRows][2];
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    x[i] = job.x + (m + i) * job.x_stride;
  }
  const int64_t cols = job.header->cols;
  for (int64_t k = 0; k < cols; ++k) {
    const __m256 w0 = E::load8(w + k * kTileRows), w1 = E::load8(w + k * kTileRows + 8);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 xk = _mm256_broadcast_ss(x[i] + k);
      sums[i][0] = _mm256_fmadd_ps(w0, xk, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(w1, xk, sums[i][1]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store_row(out.data + (m + i) * out.stride, sums[i][0], sums[i][1], out.bias, out.valid);
  }
}

template <typename E>
void float_tiles(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const auto* w = reinterpret_cast<const typename E::Element*>(job.tiles + t * h.tile_bytes);
    const Out out{job.out + t * kTileRows, job.out_stride, job.bias ? job.bias + t * kTileRows : nullptr,
                  tile_rows(h, t)};
    int64_t m = job.m_begin;
    for (; m + 4 <= job.m_end; m += 4) float_block<E, 4>(w, job, m, out);
    switch (job.m_end - m) {
      case 3:
        float_block<E, 3>(w, job, m, out);
        break;
      case 2:
        float_block<E, 2>(w, job, m, out);
        break;
      case 1:
        float_block<E, 1>(w, job, m, out);
        break;
      default:
        break;
    }
  }
}

// The 32 floats of a group, zero past the end.
[[gnu::always_inline]] inline void load_group(const float* x, int64_t left, __m256 v[4]) {
  if (left >= kXGroup) {
    for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
    return;
  }
  float padded[kXGroup] = {};
  for (int64_t k = 0; k < left; ++k) padded[k] = x[k];  // left may be negative: all padding
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(padded + 8 * i);
}

[[gnu::always_inline]] inline int32_t max_lane(__m256i v) {
  __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
  return _mm_cvtsi128_si32(a);
}

[[gnu::always_inline]] inline void quantize_group(const float* x, int64_t left, const QuantRow& row,
                                                  int64_t g) {
  __m256 v[4];
  load_group(x, left, v);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  const int32_t bits = max_lane(top);
  float amax;
  __builtin_memcpy(&amax, &bits, 4);
  const bool bad = bits >= 0x7f800000, zero = amax < 1e-35f;
  const float inverse = bad || zero ? 0.f : 127.f / amax;
  const float scale = bad ? amax * 0.f : zero ? 0.f : amax / 127.f;
  __m256i q[4];
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
  if (bad) {
    for (int i = 0; i < 4; ++i) q[i] = _mm256_setzero_si256();
  }
  const __m256i ab = _mm256_packs_epi32(q[0], q[1]), cd = _mm256_packs_epi32(q[2], q[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.q + g * kXGroup), bytes);

  // Sums of both halves: u8 ones times s8.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m256i s = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
  s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
  const int32_t first = _mm256_extract_epi32(s, 0), second = _mm256_extract_epi32(s, 4);
  const int64_t step = row.step;
  row.scale[g * step] = scale;
  row.unbias32[g * step] = -128 * (first + second);
  row.fsum32[g * step] = float(first + second) * scale;
  row.unbias16[2 * g * step] = -128 * first;
  row.unbias16[(2 * g + 1) * step] = -128 * second;
  row.fsum16[2 * g * step] = float(first) * scale;
  row.fsum16[(2 * g + 1) * step] = float(second) * scale;
}

template <int kGroup>
void integer_kernels(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  if (h.element == WeightElement::int4) return integer_tiles<Int4Quants, kGroup>(job, tile_begin, tile_end);
  if (h.max_quant <= 31) return integer_tiles<Int5Quants, kGroup>(job, tile_begin, tile_end);
  if (h.max_quant <= 63) return integer_tiles<Int6Quants, kGroup>(job, tile_begin, tile_end);
  integer_tiles<Int8Quants, kGroup>(job, tile_begin, tile_end);
}

}  // namespace

void quantize_avx2(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                   int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const QuantRow row = quant_row(out, m);
    for (int64_t g = 0; g < out.groups; ++g) {
      quantize_group(x + m * stride + g * kXGroup, cols - g * kXGroup, row, g);
    }
  }
}

void tiles_avx2(const Job& job, int64_t tile_begin, int64_t tile_end) {
  switch (job.header->element) {
    case WeightElement::f32:
      return float_tiles<F32>(job, tile_begin, tile_end);
    case WeightElement::f16:
      return float_tiles<F16>(job, tile_begin, tile_end);
    case WeightElement::bf16:
      return float_tiles<Bf16>(job, tile_begin, tile_end);
    case WeightElement::int8:
    case WeightElement::int4:
      break;
  }
  if (job.header->group == 16) return integer_kernels<16>(job, tile_begin, tile_end);
  integer_kernels<32>(job, tile_begin, tile_end);
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
