#include "quantize/grid.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/fp8.h"
#include "tensor/half.h"

namespace sluice::quantize {
namespace {

constexpr float kLeastScale = 0x1p-24f;  // the smallest that f16 holds

float as_half(float x) { return f16_to_f32(f32_to_f16(x)); }

}  // namespace

uint8_t Step::encode(float w, int bits) const {
  const float q = std::nearbyint(w / scale) + float(zero);
  return uint8_t(std::clamp(q, 0.0f, float((1 << bits) - 1)));
}

Step step_for(float low, float high, const Grid& grid) {
  const int most = (1 << grid.bits) - 1;
  low = std::min(low, 0.0f), high = std::max(high, 0.0f);
  if (grid.symmetric) {
    const int middle = 1 << (grid.bits - 1);
    return {std::max(as_half(std::max(-low, high) / float(middle - 1)), kLeastScale), uint8_t(middle)};
  }
  const float scale = std::max(as_half((high - low) / float(most)), kLeastScale);
  const float zero = std::clamp(std::nearbyint(-low / scale), float(grid.least_zero), float(most));
  return {scale, uint8_t(zero)};
}

Ranges ranges_of(const Matrix& w, int64_t group) {
  CHECK(w.cols % group == 0);
  Ranges out;
  for (size_t begin = 0; begin < w.values.size(); begin += size_t(group)) {
    const auto at = w.values.begin() + int64_t(begin);
    const auto [low, high] = std::minmax_element(at, at + group);
    out.low.push_back(*low), out.high.push_back(*high);
  }
  return out;
}

IntegerMatrix round_to_nearest(const Matrix& w, const Ranges& ranges, const Grid& grid) {
  CHECK(w.cols % grid.group == 0 && ranges.low.size() == size_t(w.rows * (w.cols / grid.group)));
  IntegerMatrix m{w.rows, w.cols, grid.group, grid.bits, std::vector<uint8_t>(w.values.size()), {}, {}};
  for (size_t g = 0; g < ranges.low.size(); g++) {
    const Step step = step_for(ranges.low[g], ranges.high[g], grid);
    m.scale.push_back(step.scale), m.zero.push_back(step.zero);
    const size_t begin = g * size_t(grid.group);
    for (size_t i = begin; i < begin + size_t(grid.group); i++) m.q[i] = step.encode(w.values[i], grid.bits);
  }
  return m;
}

IntegerMatrix round_to_nearest(const Matrix& w, const Grid& grid) {
  return round_to_nearest(w, ranges_of(w, grid.group), grid);
}

Matrix dequantize(const IntegerMatrix& m) {
  Matrix w(m.rows, m.cols);
  for (size_t i = 0; i < w.values.size(); i++) {
    const size_t g = i / size_t(m.group);
    w.values[i] = Step{m.scale[g], m.zero[g]}.decode(m.q[i]);
  }
  return w;
}

FloatMatrix to_float8(const Matrix& w, int64_t block) {
  constexpr float kLargest = 448;
  FloatMatrix m{
      w.rows, w.cols, block ? block : 1, block ? block : w.cols, std::vector<uint8_t>(w.values.size()), {}};
  const int64_t columns = (w.cols + m.block_cols - 1) / m.block_cols,
                lines = (w.rows + m.block_rows - 1) / m.block_rows;
  m.scale.assign(size_t(lines * columns), 0);
  const auto scale_of = [&](int64_t r, int64_t c) -> float& {
    return m.scale[size_t(r / m.block_rows * columns + c / m.block_cols)];
  };
  for (int64_t r = 0; r < w.rows; r++)
    for (int64_t c = 0; c < w.cols; c++)
      scale_of(r, c) = std::max(scale_of(r, c), std::fabs(w.row(r)[size_t(c)]) / kLargest);
  for (float& s : m.scale) s = s > 0 ? s : 1;
  for (int64_t r = 0; r < w.rows; r++)
    for (int64_t c = 0; c < w.cols; c++)
      m.bits[size_t(r * w.cols + c)] = f32_to_e4m3(w.row(r)[size_t(c)] / scale_of(r, c));
  return m;
}

Matrix dequantize(const FloatMatrix& m) {
  const int64_t columns = (m.cols + m.block_cols - 1) / m.block_cols;
  Matrix w(m.rows, m.cols);
  for (int64_t r = 0; r < m.rows; r++)
    for (int64_t c = 0; c < m.cols; c++)
      w.row(r)[size_t(c)] = e4m3_to_f32(m.bits[size_t(r * m.cols + c)]) *
                            m.scale[size_t(r / m.block_rows * columns + c / m.block_cols)];
  return w;
}

}  // namespace sluice::quantize
