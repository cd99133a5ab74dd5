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

float integer_dot(const Job& job, const std::byte* tile, int r, const QuantRow& x) {
  const PackedHeader& h = *job.header;
  const bool g16 = h.group == 16;
  const int per_block = kBlock / h.group;
  const int group_bytes = h.group * kTileRows / (h.element == WeightElement::int4 ? 2 : 1);
  float sum = 0;
  for (int64_t g = 0; g < int64_t(h.blocks) * per_block; ++g) {
    const std::byte* block = tile + g / per_block * h.block_bytes;
    const int64_t i = g % per_block;
    const std::byte* quants = block + h.quant_offset + i * group_bytes;
    const int8_t* xq = x.q + g * h.group;
    int32_t dot = 0;
    for (int k = 0; k < h.group; ++k) dot += quant_at(h, quants, r, k) * xq[k];
    sum += float(dot) * scale_at(h, block, i * kTileRows + r) * x.scale[(g16 ? g / 2 : g) * x.step];
    if (h.has_min)
      sum += scale_at(h, block + h.min_offset, i * kTileRows + r) * (g16 ? x.fsum16 : x.fsum32)[g * x.step];
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

// One plane of a group; leaves the residue in v.
void quantize_group(float v[kXGroup], const QuantRow& row, int64_t g) {
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
  const bool bad = top >= 0x7f800000u, zero = amax < 1e-35f;
  const float inverse = bad || zero ? 0.f : 127.f / amax;
  const float scale = bad ? amax * 0.f : zero ? 0.f : amax / 127.f;
  int32_t sums[2] = {0, 0};
  for (int k = 0; k < kXGroup; ++k) {
    const auto q = int8_t(bad ? 0 : std::nearbyintf(v[k] * inverse));
    row.q[g * kXGroup + k] = q;
    sums[k / 16] += q;
    v[k] = std::fma(-float(q), scale, v[k]);
  }
  row.scale[g * row.step] = scale;
  row.fsum32[g * row.step] = float(sums[0] + sums[1]) * scale;
  for (int i = 0; i < 2; ++i) row.fsum16[(2 * g + i) * row.step] = float(sums[i]) * scale;
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
      for (int plane = 0; plane < kPlanes; ++plane) quantize_group(v, quant_row(out, m * kPlanes + plane), g);
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
                                       : integer_dot(job, tile, r, quant_row(job.xq, m * kPlanes)) +
                                             integer_dot(job, tile, r, quant_row(job.xq, m * kPlanes + 1));
        job.out[m * job.out_stride + n] = sum + (job.bias ? job.bias[n] : 0.f);
      }
    }
  }
}

}  // namespace sluice::cpu
