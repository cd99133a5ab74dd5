// Q4_1: 32 columns in 20 bytes: f16 d, f16 m, 16 bytes of nibbles. w = d * q + m; byte j holds columns j (low)
// and j + 16 (high). Canonical: int4, groups of 32, with min.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q4_1(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 20) {
    const auto* qs = reinterpret_cast<const uint8_t*>(in + 4);
    int8_t* q = out.q.data() + b * 32;
    for (int j = 0; j < 16; j++) {
      q[j] = int8_t(qs[j] & 15);
      q[j + 16] = int8_t(qs[j] >> 4);
    }
    out.scale[size_t(b)] = load_f16(in);
    out.min[size_t(b)] = load_f16(in + 2);
  }
}

}  // namespace sluice
