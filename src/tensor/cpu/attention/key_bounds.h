// Bounds of a block's keys, and what a query can make of them at most (tensor/sparse_decode.h). Half-precision
// numbers are compared and widened by their bits, in loops that any compiler makes vectors of: choosing must
// cost little beside reading what was chosen.
#pragma once

#include <cstdint>

#include "tensor/cpu/attention/tier_kernels.h"

namespace sluice::cpu {

// bounds [2][padded D]: the lowest and the highest of each channel over the block's pages of keys. Channels
// beyond the head's width are 0.
void bound_keys(const StripShape& shape, const uint16_t* const* keys, uint16_t* bounds);

// q [heads, D] as its positive and negative parts, [heads, padded D] each.
void split_queries(const float* q, int heads, const StripShape& shape, float* positive, float* negative);

// The most that any key within the bounds could make with any of these heads.
float bounded_score(const uint16_t* bounds, int heads, const StripShape& shape, const float* positive,
                    const float* negative);

}  // namespace sluice::cpu
