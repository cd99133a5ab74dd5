// Element types of activations and caches, and the canonical weight formats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class DType : uint8_t { f32, bf16, f16, i32, i8 };

constexpr size_t dtype_size(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i8:
      return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i8:
      return "i8";
  }
  return "?";
}

// What one weight is stored as after the file format's brand has been forgotten. Integer elements are grouped
// along the columns (K): w[n][k] = scale[n][k / group] * q[n][k] + min[n][k / group]. So are fp8's (E4M3,
// tensor/fp8.h), that have no min and whose last group may be short.
enum class WeightElement : uint8_t { f32, f16, bf16, int8, int4, fp8 };

constexpr const char* weight_element_name(WeightElement e) {
  switch (e) {
    case WeightElement::f32:
      return "f32";
    case WeightElement::f16:
      return "f16";
    case WeightElement::bf16:
      return "bf16";
    case WeightElement::int8:
      return "int8";
    case WeightElement::int4:
      return "int4";
    case WeightElement::fp8:
      return "fp8";
  }
  return "?";
}

struct WeightFormat {
  WeightElement element = WeightElement::f32;
  int group = 0;         // columns per scale; 0 for float elements. 16 or 32 from GGUF.
  bool has_min = false;  // false: min is zero everywhere
  // Neighbouring rows that share their scales, from the source's first on: 128 for blocks of fp8, all rows
  // where the matrix has one scale. A row says its own scales whatever this is.
  int group_rows = 1;

  bool is_float() const {
    return element == WeightElement::f32 || element == WeightElement::f16 || element == WeightElement::bf16;
  }
  bool operator==(const WeightFormat&) const = default;
};

}  // namespace sluice
