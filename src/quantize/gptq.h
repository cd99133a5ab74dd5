// Rounding column after column, where each column's error is made good in the columns still to come, as far as
// the inputs' second moments say that they can. Source: Frantar et al., GPTQ, arXiv 2210.17323.
#pragma once

#include "quantize/grid.h"

namespace sluice::quantize {

// Upper triangular U with h⁻¹ = UᵀU, of a symmetric h whose diagonal gets `damping` times its mean added (more,
// if h is still not positive definite). Columns that never had an input count as independent of all others.
Matrix inverse_factor(Matrix h, double damping);

// [N, K] rounded, given the factor of its input's hessian [K, K]. Each group's step is fixed when its first
// column is reached, from the weights as they are then.
IntegerMatrix quantize_gptq(Matrix w, const Matrix& factor, const Grid& grid, int threads);

// The same for eight-bit floats, whose scales (an output's, or a block's) come from the weights as they were.
FloatMatrix compensate_float8(Matrix w, const Matrix& factor, int64_t block, int threads);

}  // namespace sluice::quantize
