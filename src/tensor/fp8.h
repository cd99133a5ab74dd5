// E4M3 without infinities (OCP 8-bit floating point, 2023): 1 sign, 4 exponent (bias 7), 3 mantissa bits; all
// ones below the sign is NaN, the largest number 448.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/tensor.h"

namespace sluice {

inline constexpr float kMaxE4m3 = 448;

constexpr bool e4m3_is_nan(uint8_t b) { return (b & 0x7f) == 0x7f; }

constexpr float e4m3_to_f32(uint8_t b) {
  const uint32_t sign = uint32_t(b & 0x80) << 24, magnitude = b & 0x7f;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  if (magnitude < 8) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(magnitude) * 0x1p-9f));
  return std::bit_cast<float>(sign | ((magnitude << 20) + (uint32_t(127 - 7) << 23)));
}

// To nearest, ties to even; beyond 448 (and infinity) the largest number of that sign; NaN stays NaN.
inline uint8_t f32_to_e4m3(float f) {
  const auto sign = uint8_t(std::bit_cast<uint32_t>(f) >> 24 & 0x80);
  const uint32_t magnitude = std::bit_cast<uint32_t>(f) & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint8_t(sign | 0x7f);
  const float x = std::bit_cast<float>(magnitude);
  if (x >= kMaxE4m3) return uint8_t(sign | 0x7e);
  // Subnormal, or rounded up to the smallest normal number: steps of 2^-9.
  if (x < 0x1p-6f) return uint8_t(sign | uint8_t(std::nearbyint(x * 0x1p9f)));
  const uint32_t round = 0x7ffff + (magnitude >> 20 & 1);
  return uint8_t(sign | uint8_t((magnitude + round - (uint32_t(127 - 7) << 23)) >> 20));
}

// Rows of WeightElement::fp8 as bf16, each value rounded once, for a backend that has no products of eight-bit
// floats: five bits more than were stored. Borrows the source.
class Fp8AsBf16 final : public RowSource {
 public:
  explicit Fp8AsBf16(const RowSource& source) : source_(source) {}
  int64_t rows() const override { return source_.rows(); }
  int64_t cols() const override { return source_.cols(); }
  WeightFormat format() const override { return {WeightElement::bf16}; }
  void decode(int64_t row, DecodedRow& out) const override;

 private:
  const RowSource& source_;
};

}  // namespace sluice
