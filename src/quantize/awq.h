// Activation-aware weight quantization: input channels that carry large activations are scaled up before
// rounding and down again in what feeds them, and ranges are clipped, both as the error of the layer's output
// asks for. Source: arXiv 2306.00978 and its authors' code (mit-han-lab/llm-awq).
#pragma once

#include <span>

#include "quantize/grid.h"
#include "quantize/statistics.h"

namespace sluice::quantize {

// Mean over the samples' rows of |x·(w − other)ᵀ|², summed over the outputs in `rows`, from xᵀx alone.
double output_error(const Matrix& w, const Matrix& other, const Weight& hessian, Products& products);

// [K] factors for the columns of all `weights`, which read the same input; geometric middle of largest and
// smallest is 1. Of x^a, x the mean |activation| and a = 0, 1/20 .. 19/20, the factors with the least output
// error after rounding. `sharing`: query heads that share a value head lie next to each other and have common
// factors.
struct ColumnSharing {
  int64_t run = 0;    // columns of a head; 0: no sharing
  int64_t heads = 1;  // neighbouring runs that share
};
std::vector<float> search_scales(std::span<const Matrix* const> weights, const Statistics& input,
                                 const Grid& grid, const ColumnSharing& sharing, Products& products);

// The ranges of w's groups, narrowed in steps of 5 % down to half where the output error of the group falls.
Ranges search_clips(const Matrix& w, const Statistics& input, const Grid& grid, int threads);

}  // namespace sluice::quantize
