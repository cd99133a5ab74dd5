// AVX-512 with VNNI. A 64-byte vector is 4 columns of 16 rows, which vpdpbusd multiplies with 4 broadcast bytes
// of x. Weights are its unsigned operand (int8: q + 128 by flipping the sign bit, taken out by starting the sum
// at -128 * sum(x)), x the signed one, whose broadcast from memory is free. A group's weights are unpacked into
// registers once for up to 8 rows of x.
#include <immintrin.h>

#include "tensor/cpu/linear/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif

namespace sluice::cpu {
namespace {

constexpr int kMaxRows = 8;  // rows of x in a block
constexpr int kPrefetchBytes = 2048;

[[gnu::always_inline]] inline __m512 load_scales(const std::byte* p, int64_t i, bool f32) {
  if (f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(p) + i);
  return _mm512_cvtph_ps(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(reinterpret_cast<const uint16_t*>(p) + i)));
}

struct Rows {
  const int8_t* q[kMaxRows];
  const float* scale[kMaxRows];
  const int32_t* unbias[kMaxRows];  // per weight group
  const float* fsum[kMaxRows];
};

// Where a tile's results go.
struct Out {
  float* data;  // row 0, first column of the tile
  int64_t stride;
  const float* bias;
  int valid;
};

[[gnu::always_inline]] inline void store_row(const Out& out, int64_t m, __m512 v) {
  const auto mask = __mmask16((1u << out.valid) - 1);
  if (out.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, out.bias));
  _mm512_mask_storeu_ps(out.data + m * out.stride, mask, v);
}

template <bool kNibbles, int kGroup>
[[gnu::always_inline]] inline void load_weights(const std::byte* quants, __m512i w[kGroup / 4]) {
  constexpr int kQuads = kGroup / 4;
  if constexpr (kNibbles) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int j = 0; j < kQuads / 2; ++j) {
      const __m512i both = _mm512_loadu_si512(quants + j * 64);
      w[j] = _mm512_and_si512(both, low);
      w[j + kQuads / 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  } else {
    const __m512i sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) w[j] = _mm512_xor_si512(_mm512_loadu_si512(quants + j * 64), sign);
  }
}

template <bool kNibbles, int kGroup, int kRows>
void integer_block(const Job& job, const std::byte* tile, bool prefetch, int64_t m_begin, const Out& out) {
  constexpr int kGroups = kBlock / kGroup, kQuads = kGroup / 4;
  constexpr int kBytes = kGroup * kTileRows / (kNibbles ? 2 : 1);
  const PackedHeader& h = *job.header;
  const bool f32 = h.scales_f32, has_min = h.has_min;
  const int64_t step = job.xq.panel;
  Rows rows;
  __m512 sums[kRows];
  for (int m = 0; m < kRows; ++m) {
    const QuantRow r = quant_row(job.xq, m_begin + m);
    rows.q[m] = r.q;
    rows.scale[m] = r.scale;
    rows.unbias[m] = kGroup == 16 ? r.unbias16 : r.unbias32;
    rows.fsum[m] = kGroup == 16 ? r.fsum16 : r.fsum32;
    sums[m] = _mm512_setzero_ps();
  }
  for (int64_t b = 0; b < h.blocks; ++b) {
    const std::byte* block = tile + b * h.block_bytes;
    if (prefetch) {
      for (int i = 0; i < h.block_bytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(block) + kPrefetchBytes + i, _MM_HINT_T0);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kGroups; ++i) {
      const int64_t g = b * kGroups + i;
      __m512i w[kQuads];
      load_weights<kNibbles, kGroup>(block + h.quant_offset + i * kBytes, w);
      const __m512 scale = load_scales(block, i * kTileRows, f32);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        __m512i dot = kNibbles ? _mm512_setzero_si512() : _mm512_set1_epi32(rows.unbias[m][g * step]);
#pragma GCC unroll 8
        for (int j = 0; j < kQuads; ++j) {
          int32_t four;
          __builtin_memcpy(&four, rows.q[m] + g * kGroup + j * 4, 4);
          dot = _mm512_dpbusd_epi32(dot, w[j], _mm512_set1_epi32(four));
        }
        const __m512 x_scale = _mm512_set1_ps(rows.scale[m][(kGroup == 16 ? g / 2 : g) * step]);
        sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale), x_scale, sums[m]);
      }
      if (has_min) {
        const __m512 min = load_scales(block + h.min_offset, i * kTileRows, f32);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m)
          sums[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(rows.fsum[m][g * step]), sums[m]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) store_row(out, m_begin + m, sums[m]);
}

// Float elements: 16 rows of column k.
struct F32 {
  using Element = float;
  [[gnu::always_inline]] static inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
};
struct F16 {
  using Element = uint16_t;
  [[gnu::always_inline]] static inline __m512 load16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
struct Bf16 {
  using Element = uint16_t;
  [[gnu::always_inline]] static inline __m512 load16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};

template <typename E, int kRows>
void float_block(const Job& job, const std::byte* tile, bool prefetch, int64_t m_begin, const Out& out) {
  const auto* w = reinterpret_cast<const typename E::Element*>(tile);
  const float* x[kRows];
  __m512 sums[kRows];
  for (int m = 0; m < kRows; ++m) {
    x[m] = job.x + (m_begin + m) * job.x_stride;
    sums[m] = _mm512_setzero_ps();
  }
  const int64_t cols = job.header->cols;
  for (int64_t k = 0; k < cols; ++k) {
    if (prefetch) _mm_prefetch(reinterpret_cast<const char*>(w + k * kTileRows) + kPrefetchBytes, _MM_HINT_T0);
    const __m512 wk = E::load16(w + k * kTileRows);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[m] = _mm512_fmadd_ps(wk, _mm512_set1_ps(x[m][k]), sums[m]);
  }
  for (int m = 0; m < kRows; ++m) store_row(out, m_begin + m, sums[m]);
}

using BlockFn = void (*)(const Job& job, const std::byte* tile, bool prefetch, int64_t m_begin, const Out& out);

// One kernel per number of rows, [rows - 1].
template <bool kNibbles, int kGroup>
constexpr BlockFn kIntegerBlocks[kMaxRows] = {
    integer_block<kNibbles, kGroup, 1>, integer_block<kNibbles, kGroup, 2>, integer_block<kNibbles, kGroup, 3>,
    integer_block<kNibbles, kGroup, 4>, integer_block<kNibbles, kGroup, 5>, integer_block<kNibbles, kGroup, 6>,
    integer_block<kNibbles, kGroup, 7>, integer_block<kNibbles, kGroup, 8>};
template <typename E>
constexpr BlockFn kFloatBlocks[kMaxRows] = {float_block<E, 1>, float_block<E, 2>, float_block<E, 3>,
                                            float_block<E, 4>, float_block<E, 5>, float_block<E, 6>,
                                            float_block<E, 7>, float_block<E, 8>};

const BlockFn* blocks_of(const PackedHeader& h) {
  switch (h.element) {
    case WeightElement::f32:
      return kFloatBlocks<F32>;
    case WeightElement::f16:
      return kFloatBlocks<F16>;
    case WeightElement::bf16:
      return kFloatBlocks<Bf16>;
    case WeightElement::int8:
      return h.group == 16 ? kIntegerBlocks<false, 16> : kIntegerBlocks<false, 32>;
    case WeightElement::int4:
      return h.group == 16 ? kIntegerBlocks<true, 16> : kIntegerBlocks<true, 32>;
  }
  return nullptr;
}

}  // namespace

void tiles_avx512_vnni(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  const BlockFn* blocks = blocks_of(h);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const std::byte* tile = job.tiles + t * h.tile_bytes;
    const Out out{job.out + t * kTileRows, job.out_stride, job.bias ? job.bias + t * kTileRows : nullptr,
                  tile_rows(h, t)};
    for (int64_t m = job.m_begin; m < job.m_end; m += kMaxRows) {
      const int64_t left = job.m_end - m;
      blocks[(left < kMaxRows ? left : kMaxRows) - 1](job, tile, m == job.m_begin, m, out);
    }
  }
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
