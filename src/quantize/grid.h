// The integers that stand for a group of weights: from a range to a step and a zero point, and from weights to
// integers.
#pragma once

#include <cstdint>

#include "model/formats/quantized_writer.h"
#include "quantize/matrix.h"

namespace sluice::quantize {

struct Grid {
  int bits = 4;
  int64_t group = 128;     // columns per step; divides the columns
  bool symmetric = false;  // the zero point is the middle
  uint8_t least_zero = 0;  // 1 where a layout stores zero points less one
};

struct Step {
  float scale = 0;  // a number that f16 holds; never 0
  uint8_t zero = 0;

  float decode(int q) const { return scale * float(q - int(zero)); }
  uint8_t encode(float w, int bits) const;
};

// Covers low .. high and 0.
Step step_for(float low, float high, const Grid& grid);

// The range of each group. As they come from the weights, the grid covers them; clipping narrows them.
struct Ranges {
  std::vector<float> low, high;  // [rows, cols / group]
};
Ranges ranges_of(const Matrix& w, int64_t group);

// Every weight to the nearest point of its group's grid.
IntegerMatrix round_to_nearest(const Matrix& w, const Ranges& ranges, const Grid& grid);
IntegerMatrix round_to_nearest(const Matrix& w, const Grid& grid);
Matrix dequantize(const IntegerMatrix& m);

// Eight-bit floats with a scale per output (block 0), or per block x block.
FloatMatrix to_float8(const Matrix& w, int64_t block);
Matrix dequantize(const FloatMatrix& m);

}  // namespace sluice::quantize
