// AMX-INT8 for many rows of x; few rows go to the AVX-512 kernels, whose results are equal bit for bit: integer
// dot products are exact, and the float operations per group are the same in the same order.
//
// One step is a panel of 16 plane rows of x (tile A: 16 x group bytes), two tiles of 16 rows of w (tile B:
// group / 4 x 64 bytes, the order in which int8 weights are packed) and one group of columns. Scales differ
// from group to group, so each group's sums leave the tiles for the vector units: that and the tiles' loads and
// stores bound this kernel. The tile unit runs one group ahead. The float sums, 8 rows of x times two tiles,
// stay in registers.
#include <immintrin.h>

#include "tensor/cpu/linear/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                                 \
    __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif

namespace sluice::cpu {
namespace {

// A panel with fewer rows than this is quicker on the AVX-512 kernels.
constexpr int64_t kMinRows = 12;
constexpr int64_t kMaxColumns = 8192;  // int4 weights of a tile are unpacked on the stack
constexpr int kPrefetchBytes = 1280;

// Tiles: 0..3 sums (of group g with the weight tile t in 2 * (g & 1) + t); 4, 5 x (of group g in 4 + (g & 1));
// 6, 7 w. Constant data and not a local: gcc believes that ldtilecfg reads a few bytes only and drops the
// stores to the others.
template <int kGroup>
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, kGroup, kGroup, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, kGroup / 4, kGroup / 4};
};
template <int kGroup>
constexpr TileConfig<kGroup> kTileConfig;

[[gnu::always_inline]] inline __m512 load_scales(const std::byte* p, int64_t i, bool f32) {
  if (f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(p) + i);
  return _mm512_cvtph_ps(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(reinterpret_cast<const uint16_t*>(p) + i)));
}

// The quants of neighbouring tiles as [columns / 4][16 rows][4] signed bytes.
struct Quants {
  const std::byte* data;
  int64_t block_stride;
  int64_t tile_stride;
};

template <int kGroup>
void unpack_nibbles(const PackedHeader& h, const std::byte* tile, std::byte* to) {
  constexpr int kHalf = kGroup / 8;  // vectors in a group's first half
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t b = 0; b < h.blocks; ++b) {
    const std::byte* from = tile + b * h.block_bytes + h.quant_offset;
    for (int i = 0; i < h.block_bytes; i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes + i, _MM_HINT_T0);
    }
    for (int i = 0; i < kBlock / kGroup; ++i) {
      for (int j = 0; j < kHalf; ++j) {
        const __m512i both = _mm512_loadu_si512(from + (i * kHalf + j) * 64);
        std::byte* out = to + b * kBlock * kTileRows + (i * 2 * kHalf + j) * 64;
        _mm512_store_si512(out, _mm512_and_si512(both, low));
        _mm512_store_si512(out + kHalf * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
      }
    }
  }
}

struct Panel {
  const int8_t* q;
  int64_t q_stride;
  const float* scale;  // [g][16], at the high planes
  const float* fsum;   // [g][16], per weight group, at the high planes
};
constexpr int kPanelX = kPanelRows / kPlanes;  // rows of x in a panel

// Starts the tile unit on a group with `kSlot` = its number mod 2.
template <int kSlot, int kTiles>
[[gnu::always_inline]] inline void multiply(const int8_t* x, int64_t x_stride, const std::byte* w,
                                            int64_t tile_stride) {
  if constexpr (kSlot == 0) {
    _tile_loadd(4, x, x_stride);
    _tile_loadd(6, w, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    if constexpr (kTiles == 2) {
      _tile_loadd(7, w + tile_stride, 64);
      _tile_zero(1);
      _tile_dpbssd(1, 4, 7);
    }
  } else {
    _tile_loadd(5, x, x_stride);
    _tile_loadd(6, w, 64);
    _tile_zero(2);
    _tile_dpbssd(2, 5, 6);
    if constexpr (kTiles == 2) {
      _tile_loadd(7, w + tile_stride, 64);
      _tile_zero(3);
      _tile_dpbssd(3, 5, 7);
    }
  }
}

// One tile's group: the planes of each row of x put together, scaled, added up.
[[gnu::always_inline]] inline void add_group(const int32_t* dots, __m512 scale, const float* x_scale,
                                             __m512 sums[kPanelX]) {
#pragma GCC unroll 8
  for (int m = 0; m < kPanelX; ++m) {
    const __m512i high = _mm512_load_si512(dots + m * 32), low = _mm512_load_si512(dots + m * 32 + 16);
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, kPlaneShift), low));
    sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(dot, scale), _mm512_set1_ps(x_scale[kPlanes * m]), sums[m]);
  }
}

[[gnu::always_inline]] inline void add_mins(__m512 min, const float* x_sum, __m512 sums[kPanelX]) {
#pragma GCC unroll 8
  for (int m = 0; m < kPanelX; ++m) {
    sums[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(x_sum[kPlanes * m]), sums[m]);
  }
}

// out[t][m] = weight tile t times row m of the panel.
template <int kGroup, bool kMins, int kTiles>
void panel_block(const PackedHeader& h, const std::byte* tile, const Quants& w, bool prefetch, const Panel& x,
                 __m512 out[kTiles][kPanelX]) {
  constexpr int kGroups = kBlock / kGroup, kBytes = kGroup * kTileRows;
  alignas(64) int32_t dots[2][kTiles][kPanelRows * kTileRows];
  const bool f32 = h.scales_f32;
  __m512 sums[kTiles][kPanelX];
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
    for (int m = 0; m < kPanelX; ++m) sums[t][m] = _mm512_setzero_ps();
  }

  multiply<0, kTiles>(x.q, x.q_stride, w.data, w.tile_stride);
  for (int64_t b = 0; b < h.blocks; ++b) {
    const std::byte* block = tile + b * h.block_bytes;
    const std::byte* quants = w.data + b * w.block_stride;
    if (prefetch) {
      for (int i = 0; i < h.block_bytes; i += 64) {
        for (int t = 0; t < kTiles; ++t) {
          const std::byte* ahead = block + t * h.tile_bytes + 2 * kPrefetchBytes + i;
          _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
        }
      }
    }
    const int8_t* xq = x.q + b * kBlock;
    const float* scales = x.scale + b * (kBlock / kXGroup) * kPanelRows;
    const float* fsums = x.fsum + b * kGroups * kPanelRows;
#pragma GCC unroll 4
    for (int i = 0; i < kGroups; ++i) {
      // The next group, which may be the next block's first.
      if (i < kGroups - 1) {
        if (i % 2 == 0)
          multiply<1, kTiles>(xq + (i + 1) * kGroup, x.q_stride, quants + (i + 1) * kBytes, w.tile_stride);
        else
          multiply<0, kTiles>(xq + (i + 1) * kGroup, x.q_stride, quants + (i + 1) * kBytes, w.tile_stride);
      } else if (b + 1 < h.blocks) {
        multiply<0, kTiles>(xq + kBlock, x.q_stride, quants + w.block_stride, w.tile_stride);
      }
      if (i % 2 == 0) {
        _tile_stored(0, dots[0][0], 64);
        if constexpr (kTiles == 2) _tile_stored(1, dots[0][kTiles - 1], 64);
      } else {
        _tile_stored(2, dots[1][0], 64);
        if constexpr (kTiles == 2) _tile_stored(3, dots[1][kTiles - 1], 64);
      }
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) {
        const std::byte* from = block + t * h.tile_bytes;
        add_group(dots[i % 2][t], load_scales(from, i * kTileRows, f32),
                  scales + i * kGroup / kXGroup * kPanelRows, sums[t]);
        if constexpr (kMins) {
          add_mins(load_scales(from + h.min_offset, i * kTileRows, f32), fsums + i * kPanelRows, sums[t]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
    for (int m = 0; m < kPanelX; ++m) out[t][m] = sums[t][m];
  }
}

// kTiles tiles from t times all plane rows of the job up to m_end.
template <int kGroup, bool kMins, int kTiles>
void tiles_block(const Job& job, int64_t m_end, int64_t t, std::byte* unpacked) {
  const PackedHeader& h = *job.header;
  const std::byte* tile = job.tiles + t * h.tile_bytes;
  const bool int4 = h.element == WeightElement::int4;
  Quants w{tile + h.quant_offset, h.block_bytes, h.tile_bytes};
  if (int4) {
    w = {unpacked, kBlock * kTileRows, kMaxColumns * kTileRows};
    for (int i = 0; i < kTiles; ++i) {
      unpack_nibbles<kGroup>(h, tile + i * h.tile_bytes, unpacked + i * w.tile_stride);
    }
  }
  const int64_t m_begin = job.m_begin * kPlanes;
  for (int64_t m = m_begin; m < m_end; m += kPanelRows) {
    const QuantRow row = quant_row(job.xq, m);
    const Panel x{row.q, job.xq.groups * kXGroup, row.scale, kGroup == 16 ? row.fsum16 : row.fsum32};
    __m512 sums[kTiles][kPanelX];
    panel_block<kGroup, kMins, kTiles>(h, tile, w, m == m_begin && !int4, x, sums);
    const int64_t rows = (m_end - m < kPanelRows ? m_end - m : kPanelRows) / kPlanes;
    for (int i = 0; i < kTiles; ++i) {
      const auto mask = __mmask16((1u << tile_rows(h, t + i)) - 1);
      const int64_t column = (t + i) * kTileRows;
      float* out = job.out + m / kPlanes * job.out_stride + column;
      for (int64_t r = 0; r < rows; ++r) {
        __m512 v = sums[i][r];
        if (job.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, job.bias + column));
        _mm512_mask_storeu_ps(out + r * job.out_stride, mask, v);
      }
    }
  }
}

template <int kGroup, bool kMins>
void integer_tiles(const Job& job, int64_t m_end, int64_t tile_begin, int64_t tile_end) {
  alignas(64) std::byte unpacked[2 * kMaxColumns * kTileRows];
  _tile_loadconfig(&kTileConfig<kGroup>);
  int64_t t = tile_begin;
  for (; t + 2 <= tile_end; t += 2) tiles_block<kGroup, kMins, 2>(job, m_end, t, unpacked);
  if (t < tile_end) tiles_block<kGroup, kMins, 1>(job, m_end, t, unpacked);
  _tile_release();
}

}  // namespace

void tiles_amx(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  if (h.pairs) return tiles_amx_bf16(job, tile_begin, tile_end);
  const int64_t begin = job.m_begin * kPlanes, end = job.m_end * kPlanes, rest = (end - begin) % kPanelRows;
  const int64_t m_end = rest >= kMinRows ? end : end - rest;
  if (h.group == 0 || job.xq.panel != kPanelRows || m_end <= begin || h.blocks * kBlock > kMaxColumns) {
    return tiles_avx512_vnni(job, tile_begin, tile_end);
  }
  if (h.group == 32) {
    if (h.has_min)
      integer_tiles<32, true>(job, m_end, tile_begin, tile_end);
    else
      integer_tiles<32, false>(job, m_end, tile_begin, tile_end);
  } else {
    if (h.has_min)
      integer_tiles<16, true>(job, m_end, tile_begin, tile_end);
    else
      integer_tiles<16, false>(job, m_end, tile_begin, tile_end);
  }
  if (m_end < end) {
    Job few = job;
    few.m_begin = m_end / kPlanes;
    tiles_avx512_vnni(few, tile_begin, tile_end);
  }
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
