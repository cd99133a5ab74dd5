// Moving the spread of activations into weights, so that both fit eight bits. Source: Xiao et al., SmoothQuant,
// arXiv 2211.10438.
#pragma once

#include <span>

#include "quantize/matrix.h"

namespace sluice::quantize {

// [K] factors for the columns of `weights`, which read the same input whose channels range to `range`:
// range^strength / (largest |w| of the column)^(1 - strength). 1 for channels that never had an input.
std::vector<float> smoothing_scales(std::span<const Matrix* const> weights, const std::vector<float>& range,
                                    double strength);

}  // namespace sluice::quantize
