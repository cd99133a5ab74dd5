// The decoders of block formats, one file each: bytes of a block -> integers, scales and minimums
// (tensor/dtype.h says what they mean). Every one is an exact re-expression: a weight computed from them in
// float32 equals the format's own definition (ggml's reference dequantization) bit for bit. Nothing else in
// Sluice knows these layouts.
#pragma once

#include <cstring>

#include "model/formats/ggml_type.h"
#include "tensor/half.h"

namespace sluice {

void decode_q4_0(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q4_1(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q5_0(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q5_1(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q8_0(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q2_k(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q3_k(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q4_k(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q5_k(const std::byte* in, int64_t blocks, DecodedRow& out);
void decode_q6_k(const std::byte* in, int64_t blocks, DecodedRow& out);

inline float load_f16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return f16_to_f32(bits);
}

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minimums into 12 bytes. The first four of each lie in
// the low six bits of bytes 0-3 and 4-7; of the others, bytes 8-11 hold the low four bits (scale low, minimum
// high) and the top two bits of bytes 0-3 and 4-7 the rest.
struct ScaleMin {
  int scale, min;
};
inline ScaleMin scale_min(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  return {(packed[i + 4] & 15) | (packed[i - 4] >> 6 << 4), (packed[i + 4] >> 4) | (packed[i] >> 6 << 4)};
}

}  // namespace sluice
