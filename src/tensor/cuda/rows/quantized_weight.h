// How a weight of eight-bit elements lies on the card: [N, K] row-major and dense, then its scales. load/
// writes it, linear/ reads it.
#pragma once

#include "tensor/cuda/rows/quantized_rows.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

inline constexpr int64_t kScaleBlock = 128;

// A weight [rows, cols] on the card, 256-byte aligned.
struct QuantizedWeight {
  const void* data = nullptr;
  const float* scales = nullptr;  // [rows], or of blocks [rows / 128 rounded up, scale_stride]
  int64_t scale_stride = 0;       // of blocks: a multiple of 4, as cuBLASLt wants it
  int64_t rows = 0, cols = 0;
};

struct QuantizedLayout {
  int64_t scale_stride = 0, scale_count = 0;
  size_t scales_at = 0;  // bytes from the elements' first
  size_t bytes = 0;

  QuantizedLayout(Factors factors, int64_t rows, int64_t cols) {
    const bool blocks = factors == Factors::fp8_blocks;
    const auto blocks_of = [](int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
    scale_stride = blocks ? (blocks_of(cols) + 3) / 4 * 4 : 0;
    scale_count = blocks ? blocks_of(rows) * scale_stride : rows;
    scales_at = (size_t(rows * cols) + 255) / 256 * 256;
    bytes = scales_at + size_t(scale_count) * sizeof(float);
  }
};

// What a part's format, as `pack` left it, is multiplied as.
inline Factors factors_of(const WeightFormat& kept) {
  if (kept.element == WeightElement::int8) return Factors::int8;
  if (kept.element != WeightElement::fp8) return Factors::bf16;
  return kept.group_rows == 1 ? Factors::fp8 : Factors::fp8_blocks;
}

inline QuantizedWeight quantized_weight(const Weight& w) {
  CHECK(w.parts.size() == 1);
  const QuantizedLayout layout(factors_of(w.parts[0].format), w.rows, w.cols);
  const auto* data = w.parts[0].data.as<const std::byte>();
  return {data, reinterpret_cast<const float*>(data + layout.scales_at), layout.scale_stride, w.rows, w.cols};
}

}  // namespace sluice::cuda
