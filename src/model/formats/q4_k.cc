// Q4_K: 256 columns in 144 bytes: f16 d, f16 dmin, 12 bytes of 6-bit (scale, min) per 32 columns, 128 bytes of
// nibbles. w = d * scale * q - dmin * min; of each 64 columns, 32 bytes hold the first 32 low and the last 32
// high. Canonical: int4, groups of 32, with min.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q4_k(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 144) {
    const float d = load_f16(in), dmin = load_f16(in + 2);
    const auto* packed = reinterpret_cast<const uint8_t*>(in + 4);
    const auto* qs = packed + 12;
    int8_t* q = out.q.data() + b * 256;
    for (int chunk = 0; chunk < 4; chunk++) {
      for (int l = 0; l < 32; l++) {
        q[chunk * 64 + l] = int8_t(qs[chunk * 32 + l] & 15);
        q[chunk * 64 + 32 + l] = int8_t(qs[chunk * 32 + l] >> 4);
      }
    }
    for (int g = 0; g < 8; g++) {
      const ScaleMin s = scale_min(packed, g);
      out.scale[size_t(b * 8 + g)] = d * float(s.scale);
      out.min[size_t(b * 8 + g)] = -(dmin * float(s.min));
    }
  }
}

}  // namespace sluice
