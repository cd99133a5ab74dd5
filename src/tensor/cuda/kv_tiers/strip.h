// How a block of 64 tokens lies in a small tier: a strip per layer and kv head, its numbers in the order in
// which a warp's matrix products take them (ptx/mma.h), so that decode reads 16 bytes a lane and unpacks them
// in place, with nothing to transpose and no swizzle.
//
// A fragment is 16 x 16 numbers, the product's 16-row operand: rows are tokens and columns channels for keys,
// rows channels and columns tokens for values. A lane has eight of them, named by `r` (which of the operand's
// four registers) and `low` (which half of it). A unit is 16 bytes of a lane; units of 32 lanes lie side by
// side.
//
//   int8, fp8: two halves of 32 tokens, each
//     keys [2 groups of 16 tokens][D / 32][lane] units, values the same, key scales [32], value scales [32];
//     unit: two fragments (channels 32 i .. and 32 i + 16 ..), of each the bytes of r = 0, 1, 2, 3, low before
//     high; int8 as q + 128
//   int4:
//     keys [4 groups][D / 64][lane] units, values the same; unit: a word for each of four fragments, whose
//     nibble r + 4 * low is the number; key channels [D / 16][4] x {scales of channels 2j, 2j + 1, 2j + 8, 2j +
//     9 of 16; their minima}; value tokens [64] x {scale, minimum}
// Scales and minima are half precision.
#pragma once

#include "tensor/cuda/kv_layout.h"

namespace sluice::cuda {

template <int width>
struct Strip {
  static constexpr int kGroup = 16;  // tokens
  static constexpr int kHalf = 32;   // tokens of a half in 8 bits
  // 8 bits: of a half
  static constexpr int kGroup8 = kGroup * width;
  static constexpr int kValues8 = 2 * kGroup8;
  static constexpr int kKeyScales = 4 * kGroup8, kValueScales = kKeyScales + kHalf * 2;
  static constexpr int kHalfBytes = kValueScales + kHalf * 2;
  // int4
  static constexpr int kGroup4 = kGroup * width / 2;
  static constexpr int kValues4 = 4 * kGroup4;
  static constexpr int kChannels = 8 * kGroup4, kTokens = kChannels + width * 4;
  static constexpr int kBytes4 = kTokens + kStripTokens * 4;

  static_assert(2 * kHalfBytes == strip_bytes(KvTier::int8, width) &&
                kBytes4 == strip_bytes(KvTier::int4, width));
};

}  // namespace sluice::cuda
