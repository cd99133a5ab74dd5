#include "model/formats/rows.h"

#include <cstring>
#include <utility>

#include "tensor/fp8.h"
#include "tensor/half.h"

namespace sluice {
namespace {

class FloatRows final : public RowSource {
 public:
  FloatRows(WeightFormat format, size_t row_bytes, const std::byte* data, int64_t rows, int64_t cols)
      : format_(format), row_bytes_(row_bytes), data_(data), rows_(rows), cols_(cols) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  void decode(int64_t row, DecodedRow& out) const override {
    const std::span<const std::byte> stored = stored_row(row);
    out.raw.assign(stored.begin(), stored.end());
  }
  std::span<const std::byte> stored_row(int64_t row) const override {
    return {data_ + size_t(row) * row_bytes_, row_bytes_};
  }

 private:
  WeightFormat format_;
  size_t row_bytes_;
  const std::byte* data_;
  int64_t rows_, cols_;
};

class BlockRows final : public RowSource {
 public:
  BlockRows(const GgmlType& type, const std::byte* data, int64_t rows, int64_t cols)
      : type_(type), data_(data), rows_(rows), cols_(cols) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return type_.canonical; }
  void decode(int64_t row, DecodedRow& out) const override {
    const size_t groups = size_t(cols_ / type_.canonical.group);
    out.q.resize(size_t(cols_));
    out.scale.resize(groups);
    if (type_.canonical.has_min) {
      out.min.resize(groups);
    } else {
      out.min.assign(groups, 0.f);
    }
    type_.decode(data_ + size_t(row) * type_.row_bytes(cols_), cols_ / type_.block, out);
  }

 private:
  const GgmlType& type_;
  const std::byte* data_;
  int64_t rows_, cols_;
};

class PlusOneRows final : public RowSource {
 public:
  explicit PlusOneRows(std::unique_ptr<RowSource> source) : source_(std::move(source)) {}
  int64_t rows() const override { return source_->rows(); }
  int64_t cols() const override { return source_->cols(); }
  WeightFormat format() const override { return {}; }
  void decode(int64_t row, DecodedRow& out) const override {
    std::vector<float> values(static_cast<size_t>(cols()));
    decode_f32(*source_, row, out, values.data());
    for (float& v : values) v += 1;
    out.raw.resize(values.size() * sizeof(float));
    std::memcpy(out.raw.data(), values.data(), out.raw.size());
  }

 private:
  std::unique_ptr<RowSource> source_;
};

}  // namespace

std::unique_ptr<RowSource> make_rows(const GgmlType& type, std::span<const std::byte> data, int64_t rows,
                                     int64_t cols) {
  CHECK(type.readable());
  CHECK(data.size() == size_t(rows) * type.row_bytes(cols));
  if (type.canonical.is_float()) {
    return std::make_unique<FloatRows>(type.canonical, type.row_bytes(cols), data.data(), rows, cols);
  }
  return std::make_unique<BlockRows>(type, data.data(), rows, cols);
}

std::unique_ptr<RowSource> plus_one(std::unique_ptr<RowSource> source) {
  CHECK(source->format().is_float());
  return std::make_unique<PlusOneRows>(std::move(source));
}

void decode_f32(const RowSource& source, int64_t row, DecodedRow& scratch, float* out) {
  source.decode(row, scratch);
  const WeightFormat format = source.format();
  const size_t cols = size_t(source.cols());
  if (format.element == WeightElement::f32) {
    std::memcpy(out, scratch.raw.data(), cols * sizeof(float));
  } else if (format.is_float()) {
    for (size_t c = 0; c < cols; c++) {
      uint16_t bits;
      std::memcpy(&bits, scratch.raw.data() + 2 * c, sizeof bits);
      out[c] = format.element == WeightElement::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  } else if (format.element == WeightElement::fp8) {
    for (size_t c = 0; c < cols; c++)
      out[c] = scratch.scale[c / size_t(format.group)] * e4m3_to_f32(uint8_t(scratch.q[c]));
  } else {
    const size_t group = size_t(format.group);
    for (size_t c = 0; c < cols; c++) {
      out[c] = scratch.scale[c / group] * float(scratch.q[c]) + scratch.min[c / group];
    }
  }
}

}  // namespace sluice
