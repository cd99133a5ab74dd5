// Q5_0: 32 columns in 22 bytes: f16 d, u32 of fifth bits, 16 bytes of nibbles. w = d * (q - 16); bit j of the
// word belongs to column j, the nibbles lie as in Q4_0. Canonical: int8, groups of 32, q - 16 in -16..15.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q5_0(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 22) {
    uint32_t high;
    std::memcpy(&high, in + 2, sizeof high);
    const auto* qs = reinterpret_cast<const uint8_t*>(in + 6);
    int8_t* q = out.q.data() + b * 32;
    for (int j = 0; j < 16; j++) {
      q[j] = int8_t(int((qs[j] & 15) | (high >> j & 1) << 4) - 16);
      q[j + 16] = int8_t(int((qs[j] >> 4) | (high >> (j + 16) & 1) << 4) - 16);
    }
    out.scale[size_t(b)] = load_f16(in);
  }
}

}  // namespace sluice
