// Q5_1: 32 columns in 24 bytes: f16 d, f16 m, u32 of fifth bits, 16 bytes of nibbles. w = d * q + m, q in
// 0..31. Canonical: int8, groups of 32, with min.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q5_1(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 24) {
    uint32_t high;
    std::memcpy(&high, in + 4, sizeof high);
    const auto* qs = reinterpret_cast<const uint8_t*>(in + 8);
    int8_t* q = out.q.data() + b * 32;
    for (int j = 0; j < 16; j++) {
      q[j] = int8_t((qs[j] & 15) | (high >> j & 1) << 4);
      q[j + 16] = int8_t((qs[j] >> 4) | (high >> (j + 16) & 1) << 4);
    }
    out.scale[size_t(b)] = load_f16(in);
    out.min[size_t(b)] = load_f16(in + 2);
  }
}

}  // namespace sluice
