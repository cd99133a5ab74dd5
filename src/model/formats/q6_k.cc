// Q6_K: 256 columns in 210 bytes: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales per 16
// columns, f16 d. w = d * scale * (q - 32). Each half of 128 columns has 64 nibble bytes (columns l and l + 32
// low, l + 64 and l + 96 high) and 32 bytes of pairs (columns l, l + 32, l + 64, l + 96). Canonical: int8,
// groups of 16, q - 32 in -32..31.
#include "model/formats/blocks.h"

namespace sluice {

void decode_q6_k(const std::byte* in, int64_t blocks, DecodedRow& out) {
  for (int64_t b = 0; b < blocks; b++, in += 210) {
    const float d = load_f16(in + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(in + 192);
    for (int half = 0; half < 2; half++) {
      const auto* low = reinterpret_cast<const uint8_t*>(in) + half * 64;
      const auto* high = reinterpret_cast<const uint8_t*>(in) + 128 + half * 32;
      int8_t* q = out.q.data() + b * 256 + half * 128;
      for (int quarter = 0; quarter < 4; quarter++) {
        for (int l = 0; l < 32; l++) {
          const int nibble = low[quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
          q[quarter * 32 + l] = int8_t((nibble | (high[l] >> (2 * quarter) & 3) << 4) - 32);
        }
      }
    }
    for (int g = 0; g < 16; g++) out.scale[size_t(b * 16 + g)] = d * float(scales[g]);
  }
}

}  // namespace sluice
