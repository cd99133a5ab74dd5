#include "tensor/fp8.h"

#include <cstring>

#include "tensor/half.h"

namespace sluice {

void Fp8AsBf16::decode(int64_t row, DecodedRow& out) const {
  source_.decode(row, out);
  const auto cols = size_t(source_.cols()), group = size_t(source_.format().group);
  out.raw.resize(cols * 2);
  for (size_t c = 0; c < cols; ++c) {
    const uint16_t value = f32_to_bf16(e4m3_to_f32(uint8_t(out.q[c])) * out.scale[c / group]);
    std::memcpy(out.raw.data() + 2 * c, &value, 2);
  }
}

}  // namespace sluice
