// Q4_0: 32 columns in 18 bytes: f16 d, 16 bytes of nibbles. w = d * (q - 8); byte j holds columns j (low) and j
// + 16 (high). Canonical: int4, groups of 32, min = -8 d (a power of two, so exact).
#include "model/formats/blocks.h"

namespace sluice {

void decode_q4_0(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 18) {
    const float d = load_f16(in);
    const auto* qs = reinterpret_cast<const uint8_t*>(in + 2);
    int8_t* q = out.q.data() + b * 32;
    for (int j = 0; j < 16; j++) {
      q[j] = int8_t(qs[j] & 15);
      q[j + 16] = int8_t(qs[j] >> 4);
    }
    out.scale[size_t(b)] = d;
    out.min[size_t(b)] = -8 * d;
  }
}

}  // namespace sluice
