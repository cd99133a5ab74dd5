// AVX2: rows of x to 15-bit integers, as two byte planes for kernels_avx2.cc or as words for
// kernels_avx2_words.cc.
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

[[gnu::always_inline]] inline int32_t sum_lanes(__m256i v) {
  __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
  return _mm_cvtsi128_si32(a);
}

// Stores one plane's bytes of a group and what takes the weights' bias out; returns the sums of both halves.
struct HalfSums {
  int32_t first, second;
};
[[gnu::always_inline]] inline HalfSums store_plane(const __m256i q[4], const QuantRow& row, int64_t g) {
  const __m256i ab = _mm256_packs_epi32(q[0], q[1]), cd = _mm256_packs_epi32(q[2], q[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.q + g * kXGroup), bytes);
  // Of each half of 16 columns the sums of columns 0, 1 mod 4 and 2, 3 mod 4, as pairs of 16 bits.
  __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const __m256i unbias = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(pairs, 4));
  const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m128i unbias0 = _mm256_castsi256_si128(unbias), unbias1 = _mm256_extracti128_si256(unbias, 1);
  row.unbias32[g * row.step] = _mm_cvtsi128_si32(_mm_add_epi16(unbias0, unbias1));
  row.unbias16[2 * g * row.step] = _mm_cvtsi128_si32(unbias0);
  row.unbias16[(2 * g + 1) * row.step] = _mm_cvtsi128_si32(unbias1);
  return {_mm256_cvtsi256_si32(sums), _mm256_extract_epi32(sums, 4)};
}

// A group's integers as words, each four columns in the order 0, 2, 1, 3 (kernels_avx2_words.cc); returns the
// sums of both halves.
[[gnu::always_inline]] inline HalfSums store_words(const __m256i q[4], int16_t* words) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3,
                                         6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  int32_t sums[2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i a = q[2 * half], b = q[2 * half + 1];
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words) + half, _mm256_shuffle_epi8(packed, order));
    sums[half] = sum_lanes(_mm256_add_epi32(a, b));
  }
  return {sums[0], sums[1]};
}

// `words`: where the group's words go; null: planes.
[[gnu::always_inline]] inline void quantize_group(const __m256 v[4], const QuantRow& high, const QuantRow& low,
                                                  int64_t g, int16_t* words) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  const int32_t bits = max_lane(top);
  float amax;
  __builtin_memcpy(&amax, &bits, 4);
  const bool bad = bits >= 0x7f800000, zero = amax < kZeroBelow;
  const float inverse = bad || zero ? 0.f : kMaxQuant / amax;
  const float scale = bad ? amax * 0.f : zero ? 0.f : amax / kMaxQuant;
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
    if (bad) q[i] = _mm256_setzero_si256();
  }
  int32_t first, second;
  if (words) {
    const HalfSums sums = store_words(q, words);
    first = sums.first;
    second = sums.second;
  } else {
    __m256i h[4], l[4];
    for (int i = 0; i < 4; ++i) {
      h[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(1 << (kPlaneShift - 1))), kPlaneShift);
      l[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(h[i], kPlaneShift));
    }
    const HalfSums hs = store_plane(h, high, g), ls = store_plane(l, low, g);
    first = hs.first * (1 << kPlaneShift) + ls.first;
    second = hs.second * (1 << kPlaneShift) + ls.second;
  }
  const int64_t step = high.step;
  high.scale[g * step] = scale;
  high.fsum32[g * step] = float(first + second) * scale;
  high.fsum16[2 * g * step] = float(first) * scale;
  high.fsum16[(2 * g + 1) * step] = float(second) * scale;
}

}  // namespace

void quantize_avx2(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                   int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const QuantRow high = quant_row(out, m * kPlanes), low = quant_row(out, m * kPlanes + 1);
    int16_t* words = quant_words(out, m);
    const int64_t words_step = out.panel / kPlanes * kXGroup;
    for (int64_t g = 0; g < out.groups; ++g) {
      __m256 v[4];
      load_group(x + m * stride + g * kXGroup, cols - g * kXGroup, v);
      quantize_group(v, high, low, g, out.words ? words + g * words_step : nullptr);
    }
  }
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
