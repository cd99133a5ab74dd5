// How fast this card reads its memory: what shares of bandwidth refer to.
#pragma once

#include <cstddef>

#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Bytes a second of the fastest of a few reductions over `bytes` of device memory, far more than the L2 holds.
double measure_read_rate(const Context& context, const void* data, size_t bytes);

}  // namespace sluice::cuda
