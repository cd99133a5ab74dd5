#include "tensor/cuda/load/decode.h"

#include <cstring>

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

void floats(const std::byte* in, WeightElement element, size_t cols, uint16_t* out) {
  if (element == WeightElement::bf16) {
    std::memcpy(out, in, cols * 2);
  } else if (element == WeightElement::f32) {
    for (size_t i = 0; i < cols; ++i) out[i] = f32_to_bf16(load<float>(in + 4 * i));
  } else {
    for (size_t i = 0; i < cols; ++i) out[i] = f32_to_bf16(f16_to_f32(load<uint16_t>(in + 2 * i)));
  }
}

void integers(const DecodedRow& row, size_t group, size_t cols, uint16_t* out) {
  for (size_t g = 0; g * group < cols; ++g) {
    const float scale = row.scale[g], min = row.min[g];
    const int8_t* q = row.q.data() + g * group;
    for (size_t i = 0; i < group; ++i) out[g * group + i] = f32_to_bf16(scale * float(q[i]) + min);
  }
}

}  // namespace

void decode_bf16(const RowSource& source, int64_t row, DecodedRow& scratch, uint16_t* out) {
  const WeightFormat format = source.format();
  const size_t cols = size_t(source.cols());
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
