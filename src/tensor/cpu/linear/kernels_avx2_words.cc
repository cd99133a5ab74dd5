// AVX2, x as 15-bit integers in words (QuantRows::words): vpmaddwd multiplies 16 pairs of words and adds each
// pair in 32 bits, exactly, whatever the weights' range. Two multiplications and two additions for 32 products;
// two byte planes take as many where sums fit 16 bits and four and four where they don't (full-range int8).
// Widening the weights is extra, so a block of 64 columns is widened once, into L1, for up to kPassRows rows.
// Same bits as kernels_avx2.cc: the integers are exact in both and the float operations the same.
//
// A vector of packed bytes is 4 columns of 8 rows. Its even bytes are columns 0 and 2 of each row as
// neighbours, its odd ones columns 1 and 3: hence the order of x's words.
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

constexpr int kPassRows = 32;              // rows of x that pass a tile at once: they and a block should fit L1
constexpr int64_t kStayBytes = 128 << 10;  // of tiles that stay in L2 while all rows pass
constexpr int kFewRows = 2;                // up to these, int8 is widened in registers
constexpr int64_t kManyRows = 8;           // from these on, widening pays for weights of few bits too
constexpr int kPrefetchBytes = 1280;

[[gnu::always_inline]] inline __m256i load(const void* p) {
  return _mm256_load_si256(static_cast<const __m256i*>(p));
}
[[gnu::always_inline]] inline __m256i loadu(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
[[gnu::always_inline]] inline void store(void* p, __m256i v) {
  _mm256_store_si256(static_cast<__m256i*>(p), v);
}

// Written out for the reason told in kernels_avx2.cc.
[[gnu::always_inline]] inline __m256i broadcast_pair(const int16_t* p) {
  __m256i v;
  asm volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const int16_t(*)[2]>(p)));
  return v;
}
[[gnu::always_inline]] inline __m256i multiply(__m256i w, __m256i x) {
  __m256i v;
  asm volatile("vpmaddwd %2, %1, %0" : "=x"(v) : "x"(w), "x"(x));
  return v;
}
[[gnu::always_inline]] inline void multiply_add(__m256i& sum, __m256i w, __m256i x) {
  __m256i v;
  asm volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(v) : "x"(w), "x"(x));
}

// A block of a tile, ready to be multiplied: weights are [16 quads of columns][columns 0, 2 | 1, 3][16
// rows][2].
struct alignas(64) Block {
  int16_t w[kBlock * kTileRows];  // unused where `bytes` are widened in registers
  float scales[4 * kTileRows];
  float mins[4 * kTileRows];
  const std::byte* bytes;  // the quants as they are packed
};

void widen_floats(const std::byte* from, bool f32, int count, float* to) {
  for (int i = 0; i < count; i += 8) {
    _mm256_store_ps(to + i, f32 ? _mm256_loadu_ps(reinterpret_cast<const float*>(from) + i)
                                : _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(
                                      reinterpret_cast<const uint16_t*>(from) + i))));
  }
}

[[gnu::always_inline]] inline __m256i even_bytes(__m256i v) {
  return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}
[[gnu::always_inline]] inline __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }

template <int kGroup>
[[gnu::always_inline]] inline void widen_nibbles(Block& block) {
  constexpr int kQuads = kGroup / 4;
  const __m256i low = _mm256_set1_epi16(15);
  const std::byte* q = block.bytes;
  int16_t* w = block.w;
  for (int g = 0; g < kBlock / kGroup; ++g) {
#pragma GCC unroll 2
    for (int j = 0; j < kQuads; ++j) {  // halves of the quads of the group's first half
      const __m256i v = loadu(q + j * 32);
      int16_t *first = w + j / 2 * 64 + j % 2 * 16, *second = first + kQuads / 2 * 64;
      store(first, _mm256_and_si256(v, low));
      store(first + 32, _mm256_and_si256(_mm256_srli_epi16(v, 8), low));
      store(second, _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
      store(second + 32, _mm256_srli_epi16(v, 12));
    }
    q += kGroup * kTileRows / 2;
    w += kGroup * kTileRows;
  }
}

// A bias goes with unsigned bytes, none with signed ones or with 0..31.
template <bool kBiased>
[[gnu::always_inline]] inline void widen_bytes(int bias, Block& block) {
  const __m256i biases = _mm256_set1_epi16(int16_t(bias)), low = _mm256_set1_epi16(255);
#pragma GCC unroll 2
  for (int j = 0; j < kBlock / 2; ++j) {
    const __m256i v = loadu(block.bytes + j * 32);
    int16_t* w = block.w + j / 2 * 64 + j % 2 * 16;
    store(w, kBiased ? _mm256_sub_epi16(_mm256_and_si256(v, low), biases) : even_bytes(v));
    store(w + 32, kBiased ? _mm256_sub_epi16(_mm256_srli_epi16(v, 8), biases) : odd_bytes(v));
  }
}

template <bool kNibbles, int kGroup>
[[gnu::always_inline]] inline void widen(const PackedHeader& h, Block& block) {
  if constexpr (kNibbles) {
    widen_nibbles<kGroup>(block);
  } else if (h.bias == 0) {
    widen_bytes<false>(0, block);
  } else {
    widen_bytes<true>(h.bias, block);
  }
}

// Where rows of x, neighbours in a panel, have what belongs to one group.
struct Rows {
  const int16_t* q;    // kXGroup words a row
  const float* scale;  // every kPlanes
  const float* fsum;   // every kPlanes
};

// sums[m][16] += group i of the block times kRows rows of x. kBytes: weights come from block.bytes.
template <int kGroup, int kRows, bool kMins, bool kBytes>
[[gnu::always_inline]] inline void add_group(const Block& block, int i, const Rows& x, float* sums) {
  const int16_t* w = block.w + i * kGroup * kTileRows;
  const std::byte* bytes = block.bytes + i * kGroup * kTileRows;
  __m256i dots[kRows][2];
#pragma GCC unroll 16
  for (int j = 0; j < kGroup / 2; ++j) {
    __m256i w0, w1;
    if constexpr (kBytes) {
      w0 = loadu(bytes + j / 2 * 64);
      w1 = loadu(bytes + j / 2 * 64 + 32);
      w0 = j % 2 ? odd_bytes(w0) : even_bytes(w0);
      w1 = j % 2 ? odd_bytes(w1) : even_bytes(w1);
    } else {
      w0 = load(w + j * 32);
      w1 = load(w + j * 32 + 16);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256i pair = broadcast_pair(x.q + m * kXGroup + j * 2);
      if (j == 0) {
        dots[m][0] = multiply(w0, pair);
        dots[m][1] = multiply(w1, pair);
      } else {
        multiply_add(dots[m][0], w0, pair);
        multiply_add(dots[m][1], w1, pair);
      }
    }
  }
  const float *scales = block.scales + i * kTileRows, *mins = block.mins + i * kTileRows;
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const __m256 x_scale = _mm256_broadcast_ss(x.scale + kPlanes * m);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* sum = sums + m * kTileRows + half * 8;
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[m][half]), _mm256_load_ps(scales + half * 8));
      __m256 v = _mm256_fmadd_ps(scaled, x_scale, _mm256_load_ps(sum));
      if constexpr (kMins) {
        v = _mm256_fmadd_ps(_mm256_load_ps(mins + half * 8), _mm256_broadcast_ss(x.fsum + kPlanes * m), v);
      }
      _mm256_store_ps(sum, v);
    }
  }
}

// How x lies: bytes from one panel to the next, elements from one group of 32 columns to the next.
struct Steps {
  int64_t panel_bytes;
  int64_t words;
  int64_t floats;
};

[[gnu::always_inline]] inline const float* move_bytes(const float* p, int64_t bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(p) + bytes);
}

// The whole block times kRows rows; `rows` are of its first group.
template <int kGroup, int kRows, bool kMins, bool kBytes>
[[gnu::noinline]] void add_block(const Block& block, const Rows& rows, const Steps& steps, float* sums) {
#pragma GCC unroll 1
  for (int i = 0; i < kBlock / kGroup; ++i) {
    const int i32 = kGroup == 16 ? i / 2 : i;
    const Rows x{rows.q + i32 * steps.words + (kGroup == 16 ? i % 2 * 16 : 0), rows.scale + i32 * steps.floats,
                 rows.fsum + i * steps.floats};
    add_group<kGroup, kRows, kMins, kBytes>(block, i, x, sums);
  }
}

void store_row(float* out, const float* sums, const float* bias, int valid) {
  if (valid == kTileRows) {
#pragma GCC unroll 2
    for (int i = 0; i < kTileRows; i += 8) {
      __m256 v = _mm256_load_ps(sums + i);
      if (bias) v = _mm256_add_ps(v, _mm256_loadu_ps(bias + i));
      _mm256_storeu_ps(out + i, v);
    }
    return;
  }
  for (int r = 0; r < valid; ++r) out[r] = bias ? sums[r] + bias[r] : sums[r];
}

// A block times rows [0, count) of x; `rows` are the first ones.
template <int kGroup, bool kMins, bool kBytes>
void add_rows(const Block& block, const Rows& rows, const Steps& steps, int64_t count, float* sums) {
  constexpr int kInPanel = kPanelRows / kPlanes;
  const auto at = [&](int64_t m) {
    const int64_t bytes = m / kInPanel * steps.panel_bytes, in_panel = m % kInPanel;
    return Rows{rows.q + bytes / 2 + in_panel * kXGroup, move_bytes(rows.scale, bytes) + in_panel * kPlanes,
                move_bytes(rows.fsum, bytes) + in_panel * kPlanes};
  };
  int64_t m = 0;
  for (; m + 4 <= count; m += 4) {
    add_block<kGroup, 4, kMins, kBytes>(block, at(m), steps, sums + m * kTileRows);
  }
  if (count - m >= 2) {
    add_block<kGroup, 2, kMins, kBytes>(block, at(m), steps, sums + m * kTileRows);
    m += 2;
  }
  if (m < count) add_block<kGroup, 1, kMins, kBytes>(block, at(m), steps, sums + m * kTileRows);
}

template <int kGroup, bool kBytes>
void add_rows(const PackedHeader& h, const Block& block, const Rows& rows, const Steps& steps, int64_t count,
              float* sums) {
  if (h.has_min) {
    add_rows<kGroup, true, kBytes>(block, rows, steps, count, sums);
  } else {
    add_rows<kGroup, false, kBytes>(block, rows, steps, count, sums);
  }
}

template <bool kNibbles, int kGroup>
void tile_pass(const Job& job, int64_t t, int64_t begin, int64_t end) {
  const PackedHeader& h = *job.header;
  const std::byte* p = job.tiles + t * h.tile_bytes;
  const QuantRow row = quant_row(job.xq, begin * kPlanes);
  const Steps steps{row.step * quant_row_bytes(job.xq.groups), row.step / kPlanes * kXGroup, row.step};
  Rows rows{quant_words(job.xq, begin), row.scale, kGroup == 16 ? row.fsum16 : row.fsum32};
  alignas(64) float sums[kPassRows * kTileRows];
  for (int64_t i = 0; i < (end - begin) * kTileRows; i += 8) _mm256_store_ps(sums + i, _mm256_setzero_ps());
  Block block;
  float* out = job.out + t * kTileRows;
  for (int64_t b = 0; b < h.blocks; ++b, p += h.block_bytes) {
    if (begin == job.m_begin) {
      for (int i = 0; i < h.block_bytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes + i, _MM_HINT_T0);
      }
    }
    widen_floats(p, h.scales_f32, kBlock / kGroup * kTileRows, block.scales);
    if (h.has_min) widen_floats(p + h.min_offset, h.scales_f32, kBlock / kGroup * kTileRows, block.mins);
    block.bytes = p + h.quant_offset;
    if (!kNibbles && h.bias == 0 && end - begin <= kFewRows) {
      add_rows<kGroup, !kNibbles>(h, block, rows, steps, end - begin, sums);
    } else {
      widen<kNibbles, kGroup>(h, block);
      add_rows<kGroup, false>(h, block, rows, steps, end - begin, sums);
    }
    rows.q += kBlock / kXGroup * steps.words;
    rows.scale += kBlock / kXGroup * steps.floats;
    rows.fsum += kBlock / kGroup * steps.floats;
  }
  const int valid = tile_rows(h, t);
  const float* bias = job.bias ? job.bias + t * kTileRows : nullptr;
  for (int64_t m = begin; m < end; ++m) {
    store_row(out + m * job.out_stride, sums + (m - begin) * kTileRows, bias, valid);
  }
}

template <bool kNibbles, int kGroup>
void integer_tiles(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const int64_t stay = kStayBytes / job.header->tile_bytes + 1;
  for (int64_t first = tile_begin; first < tile_end; first += stay) {
    const int64_t last = first + stay < tile_end ? first + stay : tile_end;
    for (int64_t m = job.m_begin; m < job.m_end; m += kPassRows) {
      const int64_t end = m + kPassRows < job.m_end ? m + kPassRows : job.m_end;
      for (int64_t t = first; t < last; ++t) tile_pass<kNibbles, kGroup>(job, t, m, end);
    }
  }
}

}  // namespace

bool takes_words_avx2(const PackedHeader& h, int64_t m) {
  const bool full_range = h.element == WeightElement::int8 && h.bias == 0 && h.max_quant == 255;
  return full_range || m >= kManyRows;
}

void tiles_avx2_words(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const bool nibbles = job.header->element == WeightElement::int4;
  if (job.header->group == 16) {
    return nibbles ? integer_tiles<true, 16>(job, tile_begin, tile_end)
                   : integer_tiles<false, 16>(job, tile_begin, tile_end);
  }
  return nibbles ? integer_tiles<true, 32>(job, tile_begin, tile_end)
                 : integer_tiles<false, 32>(job, tile_begin, tile_end);
}

}  // namespace sluice::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
