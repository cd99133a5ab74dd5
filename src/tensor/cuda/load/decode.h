// Rows of any canonical format as bf16.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace sluice::cuda {

// out[cols] = the row, each value computed in float32 and rounded to nearest even; bf16 rows bit by bit.
// `scratch` is reused from call to call.
void decode_bf16(const RowSource& source, int64_t row, DecodedRow& scratch, uint16_t* out);

}  // namespace sluice::cuda
