// Weights made up on the card in the 4-bit layout (bench --dummy).
#pragma once

#include <cstdint>

#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/int4_layout.h"

namespace sluice::cuda {

// Evenly distributed integers, one scale, zeros of 7 and 8 by turns: of this deviation, about zero on average.
void int4_random(const Context& context, void* data, const Int4Layout& layout, uint64_t seed, float deviation);

}  // namespace sluice::cuda
