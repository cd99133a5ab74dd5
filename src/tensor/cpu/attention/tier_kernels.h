// Keys and values of one head in a block, between full precision and the small tiers (tensor/kv_tier.h): one
// table per instruction set. A strip is what one head of one layer takes of a block; pages are those of
// chunk_kernel.h.
//
// Strips, for T = 16 * pages tokens of padded width D':
//   int8  per page {K [D'][16], V [16][D']} int8; key scales [T], value scales [T], half precision
//   int4  per page {K [D'/2][16], V [8][D']} bytes of two rows, the even one in the low nibbles; scales and
//   minima
//         of key channels [D'] each, of tokens' values [T] each, half precision
// Values beyond the head's width are whatever; they only ever meet columns that nobody reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/attention/chunk_kernel.h"

namespace sluice::cpu {

struct StripShape {
  int head_dim;
  int pages;  // of a block

  constexpr int padded() const { return padded_head(head_dim); }
  constexpr int tokens() const { return pages * kPageTokens; }
  constexpr size_t page_values() const { return size_t(padded()) * kPageTokens; }  // of keys, and of values
  constexpr size_t full_bytes() const { return size_t(pages) * page_values() * 2 * sizeof(uint16_t); }
  constexpr size_t int8_bytes() const { return size_t(pages) * page_values() * 2 + size_t(tokens()) * 4; }
  constexpr size_t int4_bytes() const {
    return size_t(pages) * page_values() + size_t(padded()) * 4 + size_t(tokens()) * 4;
  }
};

struct TierKernels {
  // [pages] pages of a whole block to a strip.
  using Encode = void (*)(const StripShape& shape, const uint16_t* const* keys, const uint16_t* const* values,
                          std::byte* strip);
  // One page of a strip: keys [D][16], values [16][D'].
  using Decode = void (*)(const StripShape& shape, const std::byte* strip, int page, uint16_t* keys,
                          uint16_t* values);
  Encode encode_int8, encode_int4;
  Decode decode_int8, decode_int4;
};

const TierKernels& tier_kernels(Isa isa);

extern const TierKernels kTierKernelsPlain;
extern const TierKernels kTierKernelsAvx2;
extern const TierKernels kTierKernelsAvx512;

}  // namespace sluice::cpu
