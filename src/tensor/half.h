// Half-precision bits to and from float, for code that runs on any processor. Kernels use the hardware's
// conversions, which round the same way (to nearest, ties to even).
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

constexpr float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x0400) {  // zero and subnormals: magnitude * 2^-24, exact in float
    const float f = float(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(f));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t(127 - 15) << 23)));
}

constexpr uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and up round to infinity
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 puts the unit of the last place at 2^-24, so the float adder does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t round = 0x0fff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((magnitude + round - (uint32_t(127 - 15) << 23)) >> 13));
}

constexpr float bf16_to_f32(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

constexpr uint16_t f32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace sluice
