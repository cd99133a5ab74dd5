// How 4-bit weights lie on the card: [N, K] in panels of 16 rows, a panel in blocks of 64 columns (128 where a
// group is that wide), each block with its scales behind it, so that a piece of any number of panels and blocks
// is one copy.
//
// A block's bytes: for each 32 columns 32 lanes x two words, then for each group 16 rows x (scale, zero). Word
// s of lane l holds what the tensor cores' A operand wants of lane l for the s-th 16 columns (mma m16n8k16 and
// wgmma with A in registers are alike there): its j-th register's two values are bits 4 j .. 4 j + 3 of either
// half-word, for row l / 4 + 8 (j % 2) and column 2 (l % 4) + 8 (j / 2), and the next. So a value is one
// instruction and a shift away from bf16: (word >> 4 j) & 0x000f000f | 0x43004300 is 128 + q, twice, exactly.
//
// w = scale * (q - zero). Both are f16; scale is stored times 256, so that what checkpoints hold as subnormal
// f16 is exact too. Integer zeros (AWQ, GPTQ, Q4_0) are exact; others are rounded to 11 bits, an eighth of what
// rounding the weights to bf16 would do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

inline constexpr int kPanelRows = 16;
inline constexpr float kInt4ScaleUp = 256;  // stored scales are so much larger

struct Int4Layout {
  int64_t rows = 0;  // N; the last panel is filled up with zeros
  int64_t cols = 0;  // K, a multiple of block_cols()
  int group = 0;     // columns of a scale: 32, 64 or 128

  constexpr int block_cols() const { return std::max(64, group); }
  constexpr int scales_offset() const { return block_cols() * kPanelRows / 2; }
  constexpr int block_bytes() const { return scales_offset() + block_cols() / group * kPanelRows * 4; }
  constexpr int64_t blocks() const { return cols / block_cols(); }  // of a panel
  constexpr int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  constexpr int64_t panel_bytes() const { return blocks() * block_bytes(); }
  constexpr size_t bytes() const { return size_t(panels() * panel_bytes()); }
};

// The layout's group for a file's: wide groups are cut into groups of 128, 64 or 32 with the same scale. 0
// where that does not go, or K is no multiple of a block: such weights stay bf16.
constexpr int int4_group(int file_group, int64_t cols) {
  for (const int g : {128, 64, 32})
    if (file_group > 0 && file_group % g == 0 && cols > 0 && cols % std::max(64, g) == 0 &&
        cols % file_group == 0)
      return g;
  return 0;
}

}  // namespace sluice::cuda
