#include "tensor/cuda/linear/int4_pack.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/half.h"

namespace sluice::cuda {
namespace {

constexpr float kMostScale = 65504 / kInt4ScaleUp, kMostZero = 60000;

struct ScaleZero {
  float scale = 0, zero = 0;
  bool constant = false;  // of a group whose integers add nothing to its minimum: they are stored as 0
};

// scale * q + min as scale * (q - zero).
ScaleZero scale_zero(float scale, float min) {
  if (min == 0) return {scale, 0, false};
  const float zero = -min / scale;
  if (!(std::fabs(zero) <= kMostZero)) return {min, -1, true};  // scale is zero, or next to nothing beside min
  // A minimum that was computed as -zero * scale gives its zero back.
  const float near = std::nearbyint(zero);
  return {scale, -near * scale == min ? near : zero, false};
}

}  // namespace

bool pack_int4_row(const Int4Layout& layout, const DecodedRow& decoded, int source_group, int row,
                   std::byte* panel) {
  CHECK(source_group % layout.group == 0 && int64_t(decoded.q.size()) >= layout.cols);
  const int groups_each = layout.block_cols() / layout.group, register_of_row = row / 8;
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    std::byte* block = panel + b * layout.block_bytes();
    const int64_t begin = b * layout.block_cols();
    for (int g = 0; g < groups_each; ++g) {
      const int64_t column = begin + int64_t(g) * layout.group, from = column / source_group;
      const float min = decoded.min.empty() ? 0.f : decoded.min[size_t(from)];
      if (!std::isfinite(decoded.scale[size_t(from)]) || !std::isfinite(min)) return false;
      const ScaleZero s = scale_zero(decoded.scale[size_t(from)], min);
      if (!(std::fabs(s.scale) < kMostScale)) return false;
      const uint16_t pair[2] = {f32_to_f16(s.scale * kInt4ScaleUp), f32_to_f16(s.zero)};
      std::memcpy(block + layout.scales_offset() + (g * kPanelRows + row) * 4, pair, 4);
      if (s.constant) continue;
      const int8_t* q = decoded.q.data() + column;
      auto* words = reinterpret_cast<uint32_t*>(block) + (g * layout.group / 32) * 64 + row % 8 * 8;
      for (int c = 0; c < layout.group; c += 2) {  // a register's two values at a time
        const int step = c % 32 / 16, lane = c % 8 / 2, j = register_of_row + 2 * (c % 16 / 8);
        uint32_t& word = words[c / 32 * 64 + lane * 2 + step];
        word |= (uint32_t(q[c] & 15) | uint32_t(q[c + 1] & 15) << 16) << (4 * j);
      }
    }
  }
  return true;
}

}  // namespace sluice::cuda
