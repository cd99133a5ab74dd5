// Q8_0: 32 columns in 34 bytes: f16 d, 32 signed bytes. w = d * q.
// Canonical: int8, groups of 32.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q8_0(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 34) {
    out.scale[size_t(b)] = load_f16(in);
    std::memcpy(out.q.data() + b * 32, in + 2, 32);
  }
}

}  // namespace sluice
