// A matrix in host memory, as weights and activations pass through the methods.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::quantize {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // [rows, cols]

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), values(size_t(r) * size_t(c)) {}
  std::span<float> row(int64_t r) { return {values.data() + r * cols, size_t(cols)}; }
  std::span<const float> row(int64_t r) const { return {values.data() + r * cols, size_t(cols)}; }
};

// The first that is NaN or infinite.
inline std::optional<float> first_not_finite(std::span<const float> values) {
  const auto at = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  return at == values.end() ? std::nullopt : std::optional(*at);
}

}  // namespace sluice::quantize
