#include "quantize/smooth.h"

#include <algorithm>
#include <cmath>

namespace sluice::quantize {

std::vector<float> smoothing_scales(std::span<const Matrix* const> weights, const std::vector<float>& range,
                                    double strength) {
  std::vector<float> largest(range.size());
  for (const Matrix* w : weights)
    for (int64_t r = 0; r < w->rows; r++)
      for (size_t c = 0; c < largest.size(); c++) largest[c] = std::max(largest[c], std::fabs(w->row(r)[c]));
  std::vector<float> s;
  for (size_t c = 0; c < range.size(); c++) {
    const bool used = range[c] > 0 && largest[c] > 0;
    s.push_back(
        used ? float(std::max(std::pow(double(range[c]), strength) / std::pow(double(largest[c]), 1 - strength),
                              1e-5))
             : 1);
  }
  return s;
}

}  // namespace sluice::quantize
