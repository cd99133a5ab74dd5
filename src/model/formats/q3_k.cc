// Q3_K: 256 columns in 110 bytes: 32 bytes of high bits, 64 bytes of low bit pairs (as in Q2_K), 12 bytes of
// 6-bit scales per 16 columns, f16 d. w = d * (scale - 32) * (q - 4), q in 0..7; bit 4 * half + pair of high
// byte l is the third bit. Scale i: low four bits in nibble i / 8 of byte i % 8, top two in bits 2 * (i / 4) of
// byte 8 + i % 4. Canonical: int4, groups of 16, min = -4 * scale (a power of two, so exact).
#include "model/formats/blocks.h"

namespace sluice {

void decode_q3_k(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 110) {
    const auto* high = reinterpret_cast<const uint8_t*>(in);
    const auto *qs = high + 32, *scales = high + 96;
    const float d = load_f16(in + 108);
    int8_t* q = out.q.data() + b * 256;
    for (int half = 0; half < 2; half++) {
      for (int pair = 0; pair < 4; pair++) {
        for (int l = 0; l < 32; l++) {
          const int low = qs[half * 32 + l] >> (2 * pair) & 3, top = high[l] >> (4 * half + pair) & 1;
          q[half * 128 + pair * 32 + l] = int8_t(low | top << 2);
        }
      }
    }
    for (int g = 0; g < 16; g++) {
      const int low = scales[g % 8] >> (g / 8 * 4) & 15, top = scales[8 + g % 4] >> (g / 4 * 2) & 3;
      const float scale = d * float((low | top << 4) - 32);
      out.scale[size_t(b * 16 + g)] = scale;
      out.min[size_t(b * 16 + g)] = -4 * scale;
    }
  }
}

}  // namespace sluice
