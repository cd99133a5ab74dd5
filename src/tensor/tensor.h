// Views and owners of memory. Symbols for shapes are fixed in tensor/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace sluice {

class Backend;

// A row-major matrix that someone else owns: [rows, cols], `stride` elements from row to row. Copying is free.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <typename T>
  T* row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }

  // The same rows, columns [begin, begin + count).
  Tensor columns(int64_t begin, int64_t count) const {
    CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {static_cast<std::byte*>(data) + size_t(begin) * dtype_size(dtype), dtype, rows, count, stride};
  }
  Tensor first_rows(int64_t count) const {
    CHECK(count >= 0 && count <= rows);
    return {data, dtype, count, cols, stride};
  }
};

// Owner of device memory; freed by the backend that made it. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, size_t bytes) : backend_(backend), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& o) noexcept
      : backend_(std::exchange(o.backend_, nullptr)),
        data_(std::exchange(o.data_, nullptr)),
        bytes_(std::exchange(o.bytes_, 0)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(backend_, o.backend_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// One row of a weight as a file reader decodes it: integers unpacked to one per byte (int4: 0..15, int8:
// -128..127) with scales and mins per group, fp8's bytes with scales, or raw float elements. The vectors are
// scratch that the caller reuses.
struct DecodedRow {
  std::vector<int8_t> q;       // [cols], integer formats and fp8
  std::vector<float> scale;    // [cols / group], rounded up
  std::vector<float> min;      // [cols / group]; all zero when !has_min
  std::vector<std::byte> raw;  // [cols * element size], float formats
};

// A matrix [rows, cols] in a file, read row by row at load time. Implemented by model/formats. Thread-safe.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual WeightFormat format() const = 0;
  virtual void decode(int64_t row, DecodedRow& out) const = 0;
  // The bytes of a row where they lie in memory as format() says (float elements, perhaps unaligned), so that
  // they need not be copied first; empty where rows must be decoded. Valid as long as the source.
  virtual std::span<const std::byte> stored_row(int64_t row) const { return {}; }
  // Rows made up from a seed instead of read (bench --dummy): a device may make up its own, normally
  // distributed with this deviation, rather than wait for the host's.
  struct Synthetic {
    uint64_t seed = 0;
    float deviation = 0;
  };
  virtual std::optional<Synthetic> synthetic() const { return {}; }
  // What was wrong with the rows decoded so far: a number that no weight can be. Asked for after packing.
  virtual Status state() const { return {}; }
};

// A matrix [rows, cols] packed in a backend's own tile order by Backend::pack. Rows may come from several
// sources with different formats (q, k, v as one matrix; gate and up as one matrix): then there are several
// parts, in row order.
struct Weight {
  struct Part {
    int64_t row_begin = 0;
    int64_t rows = 0;
    WeightFormat format;
    Buffer data;  // layout private to the backend
  };
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<Part> parts;

  size_t bytes() const {
    size_t n = 0;
    for (const Part& p : parts) n += p.data.bytes();
    return n;
  }
};

}  // namespace sluice
