// Plain C++ for processors without AVX2, and the text to read first: the other kernels compute the same
// numbers.
#include <cmath>
#include <cstring>

#include "tensor/cpu/linear/kernels.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {

float scale_at(const PackedHeader& h, const std::byte* scales, int64_t i) {
  if (h.scales_f32) return reinterpret_cast<const float*>(scales)[i];
  return f16_to_f32(reinterpret_cast<const uint16_t*>(scales)[i]);
}

// Stored integer of column k (within its group) of row r; `quants` is the group's first byte.
int quant_at(const PackedHeader& h, const std::byte* quants, int r, int k) {
  if (h.element == WeightElement::int4) {
    const int half = h.group / 2, kk = k % half;
    const auto byte = uint8_t(quants[(kk / 4) * 64 + r * 4 + kk % 4]);
    return k < half ? byte & 15 : byte >> 4;
  }
  const std::byte byte = quants[(k / 4) * 64 + r * 4 + k % 4];
  return h.bias == 0 && h.max_quant == 255 ? int(int8_t(byte)) : int(uint8_t(byte)) - h.bias;
}

// `x` is the row's high plane, the low one follows.
float integer_dot(const Job& job, const std::byte* tile, int r, const QuantRow& x, const QuantRow& low) {
  const PackedHeader& h = *job.header;
  const bool g16 = h.group == 16;
  const int per_block = kBlock / h.group;
  const int group_bytes = h.group * kTileRows / (h.element == WeightElement::int4 ? 2 : 1);
  float sum = 0;
  for (int64_t g = 0; g < int64_t(h.blocks) * per_block; ++g) {
    const std::byte* block = tile + g / per_block * h.block_bytes;
    const int64_t i = g % per_block;
    const std::byte* quants = block + h.quant_offset + i * group_bytes;
    int32_t dot = 0;
    for (int k = 0; k < h.group; ++k) {
      const int64_t at = g * h.group + k;
      dot += quant_at(h, quants, r, k) * ((x.q[at] << kPlaneShift) + low.q[at]);
    }
    sum += float(dot) * scale_at(h, block, i * kTileRows + r) * x.scale[(g16 ? g / 2 : g) * x.step];
    if (h.has_min) {
      sum += scale_at(h, block + h.min_offset, i * kTileRows + r) * (g16 ? x.fsum16 : x.fsum32)[g * x.step];
    }
  }
  return sum;
}

float element_at(const PackedHeader& h, const std::byte* tile, int64_t i) {
  switch (h.element) {
    case WeightElement::f32:
      return reinterpret_cast<const float*>(tile)[i];
    case WeightElement::bf16:
      return bf16_to_f32(reinterpret_cast<const uint16_t*>(tile)[i]);
    default:
      return f16_to_f32(reinterpret_cast<const uint16_t*>(tile)[i]);
  }
}

float float_dot(const Job& job, const std::byte* tile, int r, const float* x) {
  const PackedHeader& h = *job.header;
  float sum = 0;
  for (int64_t k = 0; k < h.cols; ++k) sum += element_at(h, tile, k * kTileRows + r) * x[k];
  return sum;
}

void quantize_group(const float v[kXGroup], const QuantRow& high, const QuantRow& low, int64_t g) {
  // Absolute values compare as integers; NaN and infinity come out above every number.
  uint32_t top = 0;
  for (int k = 0; k < kXGroup; ++k) {
    uint32_t bits;
    std::memcpy(&bits, &v[k], 4);
    bits &= 0x7fffffffu;
    if (bits > top) top = bits;
  }
  float amax;
  std::memcpy(&amax, &top, 4);
  const bool bad = top >= 0x7f800000u, zero = amax < kZeroBelow;
  const float inverse = bad || zero ? 0.f : kMaxQuant / amax;
  const float scale = bad ? amax * 0.f : zero ? 0.f : amax / kMaxQuant;
  int32_t sums[2] = {0, 0};
  for (int k = 0; k < kXGroup; ++k) {
    const int q = bad ? 0 : int(std::nearbyintf(v[k] * inverse)),
              h = (q + (1 << kPlaneShift) / 2) >> kPlaneShift;
    high.q[g * kXGroup + k] = int8_t(h);
    low.q[g * kXGroup + k] = int8_t(q - (h << kPlaneShift));
    sums[k / 16] += q;
  }
  high.scale[g * high.step] = scale;
  high.fsum32[g * high.step] = float(sums[0] + sums[1]) * scale;
  for (int i = 0; i < 2; ++i) high.fsum16[(2 * g + i) * high.step] = float(sums[i]) * scale;
}

}  // namespace

void quantize_scalar(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                     int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    for (int64_t g = 0; g < out.groups; ++g) {
      float v[kXGroup] = {};
      const int64_t left = cols - g * kXGroup;
      if (left > 0) {
        std::memcpy(v, x + m * stride + g * kXGroup, size_t(left < kXGroup ? left : kXGroup) * sizeof(float));
      }
      quantize_group(v, quant_row(out, m * kPlanes), quant_row(out, m * kPlanes + 1), g);
    }
  }
}

void tiles_scalar(const Job& job, int64_t tile_begin, int64_t tile_end) {
  const PackedHeader& h = *job.header;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const std::byte* tile = job.tiles + t * h.tile_bytes;
    for (int64_t m = job.m_begin; m < job.m_end; ++m) {
      for (int r = 0; r < tile_rows(h, t); ++r) {
        const int64_t n = t * kTileRows + r;
        const float sum = h.group == 0 ? float_dot(job, tile, r, job.x + m * job.x_stride)
                                       : integer_dot(job, tile, r, quant_row(job.xq, m * kPlanes),
                                                     quant_row(job.xq, m * kPlanes + 1));
        job.out[m * job.out_stride + n] = sum + (job.bias ? job.bias[n] : 0.f);
      }
    }
  }
}

}  // namespace sluice::cpu
