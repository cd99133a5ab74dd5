// How a packed weight lies in memory, shared by pack.cc and all kernels. See README.md for why.
//
// A part is a header and then tiles of 16 rows. An integer tile is a run of blocks of 64 columns, read from end
// to end by one stream, each
//   scales [64 / group][16] f16 or f32 | mins [64 / group][16] (same type, when has_min) | quants
// where the quants of one group are [group / 4][16 rows][4 columns] bytes (int8), or half as many bytes for
// int4: byte i of the first half of the group's columns in the low nibble, of the second half in the high
// nibble. So one 64-byte vector holds 4 consecutive columns of 16 rows, which is what maddubs, vpdpbusd and an
// AMX B tile want. A float tile is [cols][16 rows] elements; where AMX multiplies bf16 (`pairs`) it is
// [cols / 2][16 rows][2 columns], columns padded to 32 with zeros.
//
// Included by kernel files that are compiled for an instruction set: everything here has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sluice::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kXGroup = 32;  // columns of x per activation scale
inline constexpr int kBlock = 64;   // columns per block; rows of quantized x are padded to it

struct PackedHeader {
  static constexpr uint32_t kMagic = 0x534c5057;
  uint32_t magic;
  WeightElement element;
  bool has_min;
  bool scales_f32;    // else f16
  bool pairs;         // bf16 in AMX's order
  uint8_t group;      // 16 or 32 for integers, 0 for floats
  int32_t bias;       // int8: stored byte = q + bias
  int32_t max_quant;  // int8: largest stored byte when bytes are unsigned; 255 and bias 0: signed bytes
  int32_t blocks;     // integer: of 64 columns, the last one padded with zeros
  int64_t rows;
  int64_t cols;
  int64_t tiles;
  int64_t tile_bytes;
  int32_t block_bytes;
  int32_t min_offset;    // in a block
  int32_t quant_offset;  // in a block
};
inline constexpr size_t kHeaderBytes = 128;
static_assert(sizeof(PackedHeader) <= kHeaderBytes);

// Rows of x as sums of two int8 planes: the row rounded to 8 bits, and what that left over rounded to 8 bits
// again, each with scales of its own. Together they keep some 15 bits, so that quantized weights are the only
// loss; the kernels see planes as rows and add the two results. Row m's planes are plane rows 2m and 2m + 1.
//
// Plane rows lie in panels of P (16, an AMX A tile; 2 for a single row of x). G = groups of 32 columns. Per
// group of 32 a scale, and per 32 and per 16 columns the sums that biases and mins need: `fsum` is scale *
// sum(q); `unbias` takes the bias of stored weights out of a dot product, in whatever form the instruction
// set's kernels want (AVX2: see its Rows; AVX-512: -128 * sum(q)). A panel is
//   q [P][32G] | scale [G][P] f32 | unbias32 [G][P] i32 | fsum32 [G][P] f32 | unbias16 [2G][P] i32
//   | fsum16 [2G][P] f32
//
// With `words` (AVX2 only) the row's integers are not split: q is [G][P / 2 rows][32] words, each 4 columns in
// the order 0, 2, 1, 3, and `unbias` is not there.
struct QuantRows {
  std::byte* base;
  int64_t groups;      // G, even
  int64_t panel;       // P
  bool words = false;  // else planes
};

inline constexpr int kPanelRows = 16;
inline constexpr int kPlanes = 2;

// How the planes of a group make one integer: q = high * 128 + low, high in -127..127, low in -64..63, so |q|
// <= 16319 (as far as high can go without low's rounding taking it past 127), x = q * scale. Only the high
// plane's row has scale and fsum.
inline constexpr int kPlaneShift = 7;
inline constexpr float kMaxQuant = 16319;
inline constexpr float kZeroBelow =
    1e-34f;  // largest magnitudes that count as zero: kMaxQuant / amax stays finite

constexpr int64_t x_groups(int64_t cols) { return (cols + kBlock - 1) / kBlock * (kBlock / kXGroup); }
constexpr int64_t quant_row_bytes(int64_t groups) { return (groups * (kXGroup + 7 * 4) + 63) / 64 * 64; }

// Rows of x as sums of two bf16 (16 bits of mantissa), for bf16 weights on AMX: [hi: padded cols][lo: padded
// cols]. A stride of a power of two would put a tile's 16 rows into one set of the first-level cache: hence the
// odd line.
struct SplitRows {
  std::byte* base;
  int64_t cols;  // padded to 32
};
constexpr int64_t split_cols(int64_t cols) { return (cols + 31) / 32 * 32; }
constexpr int64_t split_row_bytes(int64_t padded_cols) { return padded_cols * 4 / 128 * 128 + 192; }

// Everything a kernel needs for one part.
struct Job {
  const PackedHeader* header;
  const std::byte* tiles;
  SplitRows xs;    // parts with `pairs`
  QuantRows xq;    // integer parts
  const float* x;  // float parts
  int64_t x_stride;
  int64_t m_begin;  // rows of x: [m_begin, m_end), m_begin a multiple of 16
  int64_t m_end;
  float* out;  // [m, header->rows]
  int64_t out_stride;
  const float* bias;  // [header->rows] or null
};

namespace {

// One plane row of them; what belongs to group g lies at [g * step].
struct QuantRow {
  int8_t* q;
  float* scale;
  int32_t* unbias32;
  float* fsum32;
  int32_t* unbias16;
  float* fsum16;
  int64_t step;
};

[[maybe_unused]] __attribute__((always_inline)) inline QuantRow quant_row(const QuantRows& x, int64_t row) {
  const int64_t in_panel = row % x.panel, g = x.groups * x.panel;
  std::byte* p = x.base + row / x.panel * (x.panel * quant_row_bytes(x.groups));
  auto* f = reinterpret_cast<float*>(p + g * kXGroup) + in_panel;
  auto* i = reinterpret_cast<int32_t*>(p + g * kXGroup) + in_panel;
  auto* q = reinterpret_cast<int8_t*>(p) + in_panel * x.groups * kXGroup;
  return {q, f, i + g, f + 2 * g, i + 3 * g, f + 5 * g, x.panel};
}

// Row m's words; those of group g lie at [g * panel / kPlanes * kXGroup].
[[maybe_unused]] __attribute__((always_inline)) inline int16_t* quant_words(const QuantRows& x, int64_t m) {
  const int64_t rows = x.panel / kPlanes;
  std::byte* p = x.base + m / rows * (x.panel * quant_row_bytes(x.groups));
  return reinterpret_cast<int16_t*>(p) + m % rows * kXGroup;
}

// Valid rows of a tile.
[[maybe_unused]] __attribute__((always_inline)) inline int tile_rows(const PackedHeader& h, int64_t tile) {
  const int64_t left = h.rows - tile * kTileRows;
  return left < kTileRows ? int(left) : kTileRows;
}

}  // namespace
}  // namespace sluice::cpu
