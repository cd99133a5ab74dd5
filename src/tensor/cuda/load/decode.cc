#include "tensor/cuda/load/decode.h"

#include <bit>
#include <cstring>

#include "tensor/fp8.h"
#include "tensor/half.h"

namespace sluice::cuda {
namespace {

// Rows in a file are not aligned to their elements.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// f16_to_f32 without branches, so that the loop becomes vectors (twice the pace): a subnormal's bits, put
// behind a leading one, are 2^-14 too large.
float widen(uint16_t h) {
  const uint32_t magnitude = h & 0x7fff, moved = (magnitude << 13) + (112u << 23);
  const auto subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(moved + (1u << 23)) - 0x1p-14f);
  const uint32_t special = magnitude >= 0x7c00 ? 0x7f800000u : 0u;
  return std::bit_cast<float>((magnitude < 0x400 ? subnormal : moved) | special | uint32_t(h & 0x8000) << 16);
}

void floats(const std::byte* in, WeightElement element, size_t cols, uint16_t* out) {
  if (element == WeightElement::bf16) {
    std::memcpy(out, in, cols * 2);
  } else if (element == WeightElement::f32) {
    for (size_t i = 0; i < cols; ++i) out[i] = f32_to_bf16(load<float>(in + 4 * i));
  } else {
    for (size_t i = 0; i < cols; ++i) out[i] = f32_to_bf16(widen(load<uint16_t>(in + 2 * i)));
  }
}

void integers(const DecodedRow& row, size_t group, size_t cols, uint16_t* out) {
  for (size_t g = 0; g * group < cols; ++g) {
    const float scale = row.scale[g], min = row.min[g];
    const int8_t* q = row.q.data() + g * group;
    for (size_t i = 0; i < group; ++i) out[g * group + i] = f32_to_bf16(scale * float(q[i]) + min);
  }
}

void floats8(const DecodedRow& row, size_t group, size_t cols, uint16_t* out) {
  for (size_t i = 0; i < cols; ++i) out[i] = f32_to_bf16(row.scale[i / group] * e4m3_to_f32(uint8_t(row.q[i])));
}

}  // namespace

void decode_bf16(const RowSource& source, int64_t row, DecodedRow& scratch, uint16_t* out) {
  const WeightFormat format = source.format();
  const size_t cols = size_t(source.cols());
  if (format.element == WeightElement::fp8) {
    source.decode(row, scratch);
    return floats8(scratch, size_t(format.group), cols, out);
  }
  if (!format.is_float()) {
    CHECK(format.group > 0 && cols % size_t(format.group) == 0);
    source.decode(row, scratch);
    if (!format.has_min) scratch.min.assign(cols / size_t(format.group), 0.f);
    return integers(scratch, size_t(format.group), cols, out);
  }
  std::span<const std::byte> raw = source.stored_row(row);
  if (raw.empty()) {
    source.decode(row, scratch);
    raw = scratch.raw;
  }
  CHECK(raw.size() == cols * (format.element == WeightElement::f32 ? 4 : 2));
  floats(raw.data(), format.element, cols, out);
}

}  // namespace sluice::cuda
