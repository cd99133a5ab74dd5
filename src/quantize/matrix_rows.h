// A Matrix as a source of rows, as weights are packed from.
#pragma once

#include <cstring>

#include "quantize/matrix.h"
#include "tensor/tensor.h"

namespace sluice::quantize {

class MatrixRows final : public RowSource {
 public:
  explicit MatrixRows(const Matrix& m) : m_(m) {}  // which outlives it
  int64_t rows() const override { return m_.rows; }
  int64_t cols() const override { return m_.cols; }
  WeightFormat format() const override { return {}; }
  void decode(int64_t row, DecodedRow& out) const override {
    const std::span<const std::byte> stored = stored_row(row);
    out.raw.assign(stored.begin(), stored.end());
  }
  std::span<const std::byte> stored_row(int64_t row) const override { return std::as_bytes(m_.row(row)); }

 private:
  const Matrix& m_;
};

}  // namespace sluice::quantize
