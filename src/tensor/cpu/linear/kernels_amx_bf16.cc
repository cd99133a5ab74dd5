// bf16 weights on AMX-BF16, for any number of rows of x, one included: unlike integers, these sums are rounded
// on the way, so all rows must go the same way to come out the same whatever the batch. Per 32 columns each sum
// takes tdpbf16ps of x's high half, then of its low half: the order is the same in every block shape, and a
// tile row's sums depend on that row alone. x as two bf16 has 16 bits of mantissa, so that little is lost
// against f32.
//
// A block is up to 32 rows of x times 32 of w: 4 tiles of sums, 2 of x, 2 of w.
#include <immintrin.h>

#include "tensor/cpu/linear/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

namespace sluice::cpu {
namespace {

constexpr int kStep = 32;  // columns of a tile
constexpr int kTileBytes = kStep * kTileRows * 2;
constexpr int kPrefetchBytes = 4096;

// Tiles: 0..3 sums (rows of x: 0, 1 first panel, 2, 3 second); 4, 5 x of the panels; 6, 7 w. Constant data for
// the reason told in kernels_amx.cc.
struct alignas(64) TileConfig {
  constexpr explicit TileConfig(int x_rows) {
    for (int i = 0; i < 6; ++i) rows[i] = uint8_t(x_rows);
    for (int i = 0; i < 8; ++i) row_bytes[i] = 64;
    rows[6] = rows[7] = 16;
  }
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
// [rows of x - 1]: a batch smaller than a panel doesn't pay for 16.
constexpr TileConfig kTileConfigs[kPanelRows] = {
    TileConfig(1),  TileConfig(2),  TileConfig(3),  TileConfig(4),  TileConfig(5),  TileConfig(6),
    TileConfig(7),  TileConfig(8),  TileConfig(9),  TileConfig(10), TileConfig(11), TileConfig(12),
    TileConfig(13), TileConfig(14), TileConfig(15), TileConfig(16)};

template <int kPanels, int kTiles>
[[gnu::always_inline]] inline void multiply_half(const std::byte* x0, const std::byte* x1, int64_t x_stride) {
  _tile_loadd(4, x0, x_stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kTiles == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kPanels == 2) {
    _tile_loadd(5, x1, x_stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kTiles == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

// sums[panel][tile][row of x][row of w]
template <int kPanels, int kTiles>
void block(const PackedHeader& h, const std::byte* w, bool prefetch, const SplitRows& xs, int64_t m,
           float* sums) {
  const int64_t stride = split_row_bytes(xs.cols), low = xs.cols * 2;
  const std::byte* x0 = xs.base + m * stride;
  const std::byte* x1 = x0 + kPanelRows * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < xs.cols; k += kStep, w += kTileBytes, x0 += kStep * 2, x1 += kStep * 2) {
    if (prefetch) {
      for (int i = 0; i < kTileBytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes + i, _MM_HINT_T0);
        if constexpr (kTiles == 2) {
          _mm_prefetch(reinterpret_cast<const char*>(w) + h.tile_bytes + kPrefetchBytes + i, _MM_HINT_T0);
        }
      }
    }
    _tile_loadd(6, w, 64);
    if constexpr (kTiles == 2) _tile_loadd(7, w + h.tile_bytes, 64);
    multiply_half<kPanels, kTiles>(x0, x1, stride);
    multiply_half<kPanels, kTiles>(x0 + low, x1 + low, stride);
  }
  _tile_stored(0, sums, 64);
  if constexpr (kTiles == 2) _tile_stored(1, sums + 256, 64);
  if constexpr (kPanels == 2) _tile_stored(2, sums + 512, 64);
  if constexpr (kPanels == 2 && kTiles == 2) _tile_stored(3, sums + 768, 64);
}

void store_tile(const Job& job, int64_t tile, int64_t m, int64_t rows, const float* sums) {
  const auto mask = __mmask16((1u << tile_rows(*job.header, tile)) - 1);
  const float* bias = job.bias ? job.bias + tile * kTileRows : nullptr;
  float* out = job.out + m * job.out_stride + tile * kTileRows;
  for (int64_t r = 0; r < rows; ++r) {
    __m512 v = _mm512_load_ps(sums + r * kTileRows);
    if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias));
    _mm512_mask_storeu_ps(out + r * job.out_stride, mask, v);
  }
}

template <int kPanels, int kTiles>
void block_and_store(const Job& job, int64_t tile, int64_t m, bool prefetch) {
  alignas(64) float sums[2][2][kPanelRows * kTileRows];
  const std::byte* w = job.tiles + tile * job.header->tile_bytes;
  block<kPanels, kTiles>(*job.header, w, prefetch, job.xs, m, &sums[0][0][0]);
  for (int p = 0; p < kPanels; ++p) {
    const int64_t first = m + p * kPanelRows, left = job.m_end - first;
    for (int t = 0; t < kTiles; ++t) {
      store_tile(job, tile + t, first, left < kPanelRows ? left : kPanelRows, sums[p][t]);
    }
  }
}

// All rows of x times one or two tiles of w.
template <int kTiles>
void all_rows(const Job& job, int64_t tile) {
  for (int64_t m = job.m_begin; m < job.m_end; m += 2 * kPanelRows) {
    if (m + kPanelRows < job.m_end)
      block_and_store<2, kTiles>(job, tile, m, m == job.m_begin);
    else
      block_and_store<1, kTiles>(job, tile, m, m == job.m_begin);
  }
}

// To the nearest bf16, ties to even; a NaN stays one. In the low half of each lane.
[[gnu::always_inline]] inline __m512i round_to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7fc0));
}

}  // namespace

void split_amx(const float* x, int64_t stride, int64_t cols, const SplitRows& out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    std::byte* row = out.base + m * split_row_bytes(out.cols);
    for (int64_t k = 0; k < out.cols; k += 16) {
      const int64_t left = cols - k;
      const auto mask = __mmask16(left >= 16 ? 0xffffu : left <= 0 ? 0u : (1u << left) - 1);
      const __m512 v = _mm512_maskz_loadu_ps(mask, x + m * stride + k);
      const __m512i high = round_to_bf16(v);
      const __m512 rest = _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + k * 2), _mm512_cvtepi32_epi16(high));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + (out.cols + k) * 2),
                          _mm512_cvtepi32_epi16(round_to_bf16(rest)));
    }
  }
}

void tiles_amx_bf16(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const int64_t m = job.m_end - job.m_begin;
  _tile_loadconfig(&kTileConfigs[(m < kPanelRows ? m : kPanelRows) - 1]);
  int64_t t = tile_begin;
  for (; t + 2 <= tile_end; t += 2) all_rows<2>(job, t);
  if (t < tile_end) all_rows<1>(job, t);
  _tile_release();
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
