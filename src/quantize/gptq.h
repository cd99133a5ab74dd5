// Rounding column after column, where each column's error is made good in the columns still to come, as far as
// the inputs' second moments say that they can. Source: Frantar et al., GPTQ, arXiv 2210.17323.
#pragma once

#include "quantize/grid.h"

namespace sluice::quantize {

// Upper triangular U with h⁻¹ = UᵀU, of a symmetric h whose diagonal gets `damping` times its mean added (more,
// if h is still not positive definite). Columns that never had an input count as independent of all others.
Matrix inverse_factor(Matrix h, double damping, int threads);

// What errors are made good by: columns in the order in which they are rounded, those whose input carries most
// first (their errors have the most columns to come), and the factor of the hessian in that order.
struct Compensation {
  std::vector<int32_t> order;  // [K]
  Matrix factor;               // [K, K]
};
Compensation compensation_of(const Matrix& hessian, double damping, int threads);

// [N, K] rounded. Each group's step comes from the weights as they were: groups are of columns that lie side by
// side, whatever order they are rounded in, so that readers need no list of which column is in which.
IntegerMatrix quantize_gptq(const Matrix& w, const Compensation& by, const Grid& grid, int threads);

// The same for eight-bit floats, with a scale per output (block 0), or per block x block.
FloatMatrix compensate_float8(const Matrix& w, const Compensation& by, int64_t block, int threads);

}  // namespace sluice::quantize
