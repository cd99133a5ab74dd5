#include "tensor/cpu/attention/key_bounds.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace sluice::cpu {
namespace {

constexpr int kLanes = 16;  // padded heads are whole multiples

// In the order of the numbers.
uint16_t ordered(uint16_t half) { return uint16_t(half & 0x8000 ? ~half : half | 0x8000); }
uint16_t from_ordered(uint16_t x) { return uint16_t(x & 0x8000 ? x & 0x7fff : ~x); }

// Normal and subnormal numbers alike: the exponent's bias is put right by a product.
float widened(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const float magnitude = std::bit_cast<float>(uint32_t(half & 0x7fff) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

}  // namespace

void bound_keys(const StripShape& shape, const uint16_t* const* keys, uint16_t* bounds) {
  uint16_t* const high = bounds + shape.padded();
  for (int d = 0; d < shape.padded(); ++d) {
    uint16_t least = 0xffff, most = 0;
    for (int p = 0; p < shape.pages && d < shape.head_dim; ++p) {
      const uint16_t* channel = keys[p] + size_t(d) * kPageTokens;
      for (int t = 0; t < kPageTokens; ++t) {
        least = std::min(least, ordered(channel[t]));
        most = std::max(most, ordered(channel[t]));
      }
    }
    bounds[d] = d < shape.head_dim ? from_ordered(least) : 0;
    high[d] = d < shape.head_dim ? from_ordered(most) : 0;
  }
}

void split_queries(const float* q, int heads, const StripShape& shape, float* positive, float* negative) {
  for (int h = 0; h < heads; ++h) {
    for (int d = 0; d < shape.padded(); ++d) {
      const float x = d < shape.head_dim ? q[h * shape.head_dim + d] : 0;
      positive[h * shape.padded() + d] = std::max(x, 0.0f);
      negative[h * shape.padded() + d] = std::min(x, 0.0f);
    }
  }
}

float bounded_score(const uint16_t* bounds, int heads, const StripShape& shape, const float* positive,
                    const float* negative) {
  const uint16_t* const high = bounds + shape.padded();
  float best = -std::numeric_limits<float>::infinity();
  for (int h = 0; h < heads; ++h) {
    const float* p = positive + h * shape.padded();
    const float* n = negative + h * shape.padded();
    float sums[kLanes] = {};
    for (int d = 0; d < shape.padded(); d += kLanes)
      for (int i = 0; i < kLanes; ++i)
        sums[i] += p[d + i] * widened(high[d + i]) + n[d + i] * widened(bounds[d + i]);
    float sum = 0;
    for (const float lane : sums) sum += lane;
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace sluice::cpu
