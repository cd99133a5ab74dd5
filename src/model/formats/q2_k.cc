// Q2_K: 256 columns in 84 bytes: 16 bytes of 4-bit (scale, min) per 16 columns, 64 bytes of 2-bit integers, f16
// d, f16 dmin. w = d * scale * q - dmin * min, q in 0..3. Each half of 128 columns has 32 bytes, whose bit
// pairs hold columns l, l + 32, l + 64 and l + 96. Canonical: int4, groups of 16, with min.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q2_k(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 84) {
    const auto* scales = reinterpret_cast<const uint8_t*>(in);
    const auto* qs = scales + 16;
    const float d = load_f16(in + 80), dmin = load_f16(in + 82);
    int8_t* q = out.q.data() + b * 256;
    for (int half = 0; half < 2; half++) {
      for (int pair = 0; pair < 4; pair++) {
        for (int l = 0; l < 32; l++)
          q[half * 128 + pair * 32 + l] = int8_t(qs[half * 32 + l] >> (2 * pair) & 3);
      }
    }
    for (int g = 0; g < 16; g++) {
      out.scale[size_t(b * 16 + g)] = d * float(scales[g] & 15);
      out.min[size_t(b * 16 + g)] = -(dmin * float(scales[g] >> 4));
    }
  }
}

}  // namespace sluice
