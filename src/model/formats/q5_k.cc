// Q5_K: 256 columns in 176 bytes: f16 d, f16 dmin, 12 bytes of 6-bit (scale, min) per 32 columns, 32 bytes of
// fifth bits, 128 bytes of nibbles. w = d * scale * q - dmin * min, q in 0..31; nibbles as in Q4_K, bit g of
// high byte l belongs to column l of group g. Canonical: int8, groups of 32, with min.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q5_k(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 176) {
    const float d = load_f16(in), dmin = load_f16(in + 2);
    const auto* packed = reinterpret_cast<const uint8_t*>(in + 4);
    const auto *high = packed + 12, *qs = packed + 44;
    int8_t* q = out.q.data() + b * 256;
    for (int g = 0; g < 8; g++) {
      for (int l = 0; l < 32; l++) {
        const int low = qs[g / 2 * 32 + l] >> (g % 2 * 4) & 15;
        q[g * 32 + l] = int8_t(low | (high[l] >> g & 1) << 4);
      }
      const ScaleMin s = scale_min(packed, g);
      out.scale[size_t(b * 8 + g)] = d * float(s.scale);
      out.min[size_t(b * 8 + g)] = -(dmin * float(s.min));
    }
  }
}

}  // namespace sluice
