// AVX2 + FMA + F16C. The instruction set is switched on below, after all headers, and everything is internal to
// this file, so that no AVX2 code can end up in a function that other files share.
//
// Integers: a 32-byte vector is 4 columns of 8 rows. maddubs (u8 x s8, pairs added in 16 bits) is exact only
// while the pair fits 16 bits, so the weights' range decides how often sums are widened to 32 bits (struct
// *Quants below); weights of all 8 bits, and many rows of x, are for kernels_avx2_words.cc. A block is 4 rows
// of x times 16 rows of w: 8 sums, 2 weight vectors, a broadcast of x and a product stay in the 16 registers.
// The float sums live in L1.
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

constexpr int kPrefetchBytes = 1280;

[[gnu::always_inline]] inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// The inner loop's three instructions are written out: gcc 12 takes sums of vectors apart, puts them together
// in another order, and keeps all products and operands alive in memory meanwhile (a third of the speed).
// Volatile, so that they stay in the order of the text.
[[gnu::always_inline]] inline __m256i broadcast4(const int8_t* p) {
  __m256i v;
  asm volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return v;
}
[[gnu::always_inline]] inline __m256i multiply(__m256i w, __m256i x) {
  __m256i v;
  asm volatile("vpmaddubsw %2, %1, %0" : "=x"(v) : "x"(w), "x"(x));
  return v;
}
[[gnu::always_inline]] inline void multiply_add(__m256i& sum, __m256i w, __m256i x) {
  __m256i v;
  asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(v) : "x"(w), "x"(x));
}

// Scales of 8 rows.
[[gnu::always_inline]] inline __m256 load_scales(const std::byte* p, int64_t i, bool f32) {
  if (f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + i);
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(p) + i)));
}

// Rows of quantized x, neighbours in a panel. Of group g, row m's numbers lie at [g * step + m].
struct Rows {
  const int8_t* q;
  int64_t q_stride;
  const float* scale;
  const int32_t*
      unbias;         // per weight group: -16 * (sum of columns 0, 1 mod 4; of columns 2, 3 mod 4) as 2 x i16
  const float* fsum;  // per weight group
  int64_t step;
};

// A tile as the kernels walk it, block by block. (Widening its scales to f32 and its nibbles to bytes beside
// it, once for many rows of x, was tried and lost up to 32 rows and won 3 % at 64: the vector units wait for
// nothing else.)
struct Tile {
  const std::byte* block;  // quants start here
  int64_t block_bytes;
  const std::byte* scales;
  const std::byte* mins;  // null: none
  int64_t scale_stride;   // from block to block
  bool scales_f32;
  bool prefetch;  // first to touch these weights
};

// How a format's products are summed. A 16-bit lane gets 2 columns of each 4, so in a group of 32 it sums 16
// products, in one of 16 it sums 8. Widening to 32 bits waits for the group's end wherever the sum fits: 4
// bits, 0..15: 15 * 127 * 16 = 30480.
struct Int4Quants {
  static constexpr bool kNibbles = true;
  static constexpr int kUnbiasShift = -1;
};
// 5 bits, -16..15, stored + 16: the sums of the stored bytes wrap around, but starting from minus 16 times the
// lane's sum of x they end at the true sum, and that fits: 16 * 127 * 16 = 32512.
struct Int5Quants {
  static constexpr bool kNibbles = false;
  static constexpr int kUnbiasShift = 0;
};
// 6 bits, -32..31, stored + 32, in groups of 16 only: 32 * 127 * 8 = 32512.
struct Int6Quants {
  static constexpr bool kNibbles = false;
  static constexpr int kUnbiasShift = 1;
};
// 5 bits, 0..31, widens every 4 products of pairs: 31 * 127 * 2 * 4 = 31496. All 8 bits: see takes_words_avx2.
struct UnsignedInt5Quants {
  static constexpr int kPairs = 4;
  static constexpr bool kNibbles = false;
};

template <int kRows>
[[gnu::always_inline]] inline void add_products(__m256i w0, __m256i w1, const int8_t* q, int64_t q_stride,
                                                bool fresh, __m256i sums[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const __m256i x = broadcast4(q + m * q_stride);
    if (fresh) {
      sums[m][0] = multiply(w0, x);
      sums[m][1] = multiply(w1, x);
    } else {
      multiply_add(sums[m][0], w0, x);
      multiply_add(sums[m][1], w1, x);
    }
  }
}

// The integer dot products of group g: rows of x times both halves of the tile. Here for sums that fit 16 bits.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void group_dots(const uint8_t* w, const Rows& rows, int64_t g,
                                              __m256i dots[kRows][2]) requires requires {
  Q::kUnbiasShift;
}
{
  constexpr int kQuads = kGroup / 4;
  const int8_t* q = rows.q + g * kGroup;
  __m256i sums[kRows][2];
  constexpr bool kBiased = Q::kUnbiasShift >= 0;
  if constexpr (kBiased) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256i unbias = _mm256_set1_epi32(rows.unbias[g * rows.step + m]);
      sums[m][0] = sums[m][1] = _mm256_slli_epi16(unbias, Q::kUnbiasShift);
    }
  }
  if constexpr (Q::kNibbles) {
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int j = 0; j < kQuads / 2; ++j) {
      const __m256i w0 = _mm256_and_si256(load(w + j * 64), low),
                    w1 = _mm256_and_si256(load(w + j * 64 + 32), low);
      add_products<kRows>(w0, w1, q + j * 4, rows.q_stride, j == 0, sums);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kQuads / 2; ++j) {
      const __m256i w0 = _mm256_and_si256(_mm256_srli_epi16(load(w + j * 64), 4), low);
      const __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(load(w + j * 64 + 32), 4), low);
      add_products<kRows>(w0, w1, q + kGroup / 2 + j * 4, rows.q_stride, false, sums);
    }
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      add_products<kRows>(load(w + j * 64), load(w + j * 64 + 32), q + j * 4, rows.q_stride, j == 0 && !kBiased,
                          sums);
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    dots[m][0] = _mm256_madd_epi16(sums[m][0], ones);
    dots[m][1] = _mm256_madd_epi16(sums[m][1], ones);
  }
}

// And for those that are widened every kPairs products.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void group_dots(const uint8_t* w, const Rows& rows, int64_t g,
                                              __m256i dots[kRows][2]) requires requires {
  Q::kPairs;
}
{
  constexpr int kQuads = kGroup / 4;
  const int8_t* q = rows.q + g * kGroup;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int half = 0; half < 2; ++half) {
    __m256i sums[kRows];
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      const __m256i quants = load(w + j * 64 + half * 32);
      const bool fresh = j % Q::kPairs == 0, flush = j % Q::kPairs == Q::kPairs - 1, first = j / Q::kPairs == 0;
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m256i x = broadcast4(q + m * rows.q_stride + j * 4);
        if (fresh) {
          sums[m] = multiply(quants, x);
        } else {
          multiply_add(sums[m], quants, x);
        }
        if (!flush) continue;
        const __m256i dot = _mm256_madd_epi16(sums[m], ones);
        dots[m][half] = first ? dot : _mm256_add_epi32(dots[m][half], dot);
      }
    }
  }
}

// Adds one group's scaled dot products (and mins) to the rows' sums, planes put together. `i` is the group's
// place in its block.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void add_group(const Tile& t, const Rows& rows, int64_t block, int i,
                                             const __m256i dots[kRows][2], __m256 sums[kRows / kPlanes][2]) {
  const int64_t g = block * (kBlock / kGroup) + i;
  const std::byte* scales = t.scales + block * t.scale_stride;
  const __m256 s0 = load_scales(scales, i * 16, t.scales_f32),
               s1 = load_scales(scales, i * 16 + 8, t.scales_f32);
#pragma GCC unroll 8
  for (int m = 0; m < kRows / kPlanes; ++m) {
    const __m256i *high = dots[2 * m], *low = dots[2 * m + 1];
    const __m256i dot0 = _mm256_add_epi32(_mm256_slli_epi32(high[0], kPlaneShift), low[0]);
    const __m256i dot1 = _mm256_add_epi32(_mm256_slli_epi32(high[1], kPlaneShift), low[1]);
    const __m256 x_scale = _mm256_broadcast_ss(rows.scale + (kGroup == 16 ? g / 2 : g) * rows.step + 2 * m);
    sums[m][0] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot0), s0), x_scale, sums[m][0]);
    sums[m][1] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot1), s1), x_scale, sums[m][1]);
  }
  if (t.mins) {
    const std::byte* mins = t.mins + block * t.scale_stride;
    const __m256 min0 = load_scales(mins, i * 16, t.scales_f32),
                 min1 = load_scales(mins, i * 16 + 8, t.scales_f32);
#pragma GCC unroll 8
    for (int m = 0; m < kRows / kPlanes; ++m) {
      const __m256 x_sum = _mm256_broadcast_ss(rows.fsum + g * rows.step + 2 * m);
      sums[m][0] = _mm256_fmadd_ps(min0, x_sum, sums[m][0]);
      sums[m][1] = _mm256_fmadd_ps(min1, x_sum, sums[m][1]);
    }
  }
}

// sums[m][half] = the tile's 16 rows times kRows plane rows of x.
template <typename Q, int kGroup, int kRows>
[[gnu::always_inline]] inline void tile_dots(const Tile& t, const Rows& rows, int64_t blocks,
                                             __m256 sums[kRows / kPlanes][2]) {
  constexpr int kBytes = kGroup * kTileRows / (Q::kNibbles ? 2 : 1);
#pragma GCC unroll 8
  for (int m = 0; m < kRows / kPlanes; ++m) sums[m][0] = sums[m][1] = _mm256_setzero_ps();
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
                                   b * (kBlock / kGroup) + i, dots);
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

// kRows plane rows from m, even numbers both.
template <typename Q, int kGroup, int kRows>
void integer_block(const Tile& tile, const Job& job, int64_t m, const Out& out) {
  const QuantRow r = quant_row(job.xq, m);
  const Rows rows{r.q,
                  job.xq.groups * kXGroup,
                  r.scale,
                  kGroup == 16 ? r.unbias16 : r.unbias32,
                  kGroup == 16 ? r.fsum16 : r.fsum32,
                  r.step};
  __m256 sums[kRows / kPlanes][2];
  tile_dots<Q, kGroup, kRows>(tile, rows, job.header->blocks, sums);
#pragma GCC unroll 8
  for (int i = 0; i < kRows / kPlanes; ++i) {
    store_row(out.data + (m / kPlanes + i) * out.stride, sums[i][0], sums[i][1], out.bias, out.valid);
  }
}

template <typename Q, int kGroup>
void integer_rows(const Job& job, Tile tile, const Out& out) {
  int64_t m = job.m_begin * kPlanes;
  const int64_t end = job.m_end * kPlanes;
  for (; m + 4 <= end; m += 4) {
    integer_block<Q, kGroup, 4>(tile, job, m, out);
    tile.prefetch = false;
  }
  if (m < end) integer_block<Q, kGroup, 2>(tile, job, m, out);
}

template <typename Q, int kGroup>
[[gnu::noinline]] void integer_tiles(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const std::byte* p = job.tiles + t * h.tile_bytes;
    Tile tile{p + h.quant_offset, h.block_bytes, p,   h.has_min ? p + h.min_offset : nullptr,
              h.block_bytes,      h.scales_f32,  true};
    const Out out{job.out + t * kTileRows, job.out_stride, job.bias ? job.bias + t * kTileRows : nullptr,
                  tile_rows(h, t)};
    integer_rows<Q, kGroup>(job, tile, out);
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
void float_block(const typename E::Element* w, bool prefetch, const Job& job, int64_t m, const Out& out) {
  __m256 sums[kRows][2];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    x[i] = job.x + (m + i) * job.x_stride;
  }
  const int64_t cols = job.header->cols;
  for (int64_t k = 0; k < cols; ++k) {
    if (prefetch) _mm_prefetch(reinterpret_cast<const char*>(w + k * kTileRows) + kPrefetchBytes, _MM_HINT_T0);
    const __m256 w0 = E::load8(w + k * kTileRows), w1 = E::load8(w + k * kTileRows + 8);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 xk = _mm256_broadcast_ss(x[i] + k);
      sums[i][0] = _mm256_fmadd_ps(w0, xk, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(w1, xk, sums[i][1]);
    }
  }
#pragma GCC unroll 8
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
    for (; m + 6 <= job.m_end; m += 6) float_block<E, 6>(w, m == job.m_begin, job, m, out);
    const bool prefetch = m == job.m_begin;
    switch (job.m_end - m) {
      case 5:
        float_block<E, 5>(w, prefetch, job, m, out);
        break;
      case 4:
        float_block<E, 4>(w, prefetch, job, m, out);
        break;
      case 3:
        float_block<E, 3>(w, prefetch, job, m, out);
        break;
      case 2:
        float_block<E, 2>(w, prefetch, job, m, out);
        break;
      case 1:
        float_block<E, 1>(w, prefetch, job, m, out);
        break;
      default:
        break;
    }
  }
}

template <int kGroup>
void integer_kernels(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  if (h.element == WeightElement::int4) return integer_tiles<Int4Quants, kGroup>(job, tile_begin, tile_end);
  if (h.bias == 16) return integer_tiles<Int5Quants, kGroup>(job, tile_begin, tile_end);
  if constexpr (kGroup == 16) {
    if (h.bias == 32) return integer_tiles<Int6Quants, kGroup>(job, tile_begin, tile_end);
  }
  integer_tiles<UnsignedInt5Quants, kGroup>(job, tile_begin, tile_end);
}

}  // namespace

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
    case WeightElement::fp8:
      return;  // packed as bf16
  }
  if (job.xq.words) return tiles_avx2_words(job, tile_begin, tile_end);
  if (job.header->group == 16) return integer_kernels<16>(job, tile_begin, tile_end);
  integer_kernels<32>(job, tile_begin, tile_end);
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
