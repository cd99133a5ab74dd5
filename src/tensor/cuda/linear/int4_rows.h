// 4-bit weights (int4_layout.h) by rows: as bf16 for products by cuBLASLt, as embeddings; and what zeros they
// have.
#pragma once

#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/linear/int4_layout.h"

namespace sluice::cuda {

// out[rows, cols] (bf16, dense, 16-byte aligned) = the rows from first_row (a multiple of 16) on: scale * (q -
// zero) in float32, rounded to nearest even.
void int4_expand(const Context& context, const void* weights, const Int4Layout& layout, int64_t first_row,
                 int64_t rows, void* out);

// embed() of rows/ for a table in the 4-bit layout (one part).
void int4_embed(const Context& context, const EmbedArgs& a);

// *found (on the card) becomes 1 where a zero is no integer from 0 to 127, else stays as it is.
void int4_find_odd_zeros(const Context& context, const void* weights, const Int4Layout& layout, int* found);

}  // namespace sluice::cuda
