// Rows of 4-bit integers into the card's layout (int4_layout.h), on the host.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/cuda/linear/int4_layout.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// Row `row` (0 .. 15) of a panel of `layout`. The panel, layout.panel_bytes() long, was filled with zeros
// before its first row. `source_group`: columns of a scale in `decoded`, whose mins are empty or all zero where
// it has none. False: a scale or minimum that the layout cannot hold (beyond 255, infinite, NaN); the panel is
// then not to be used.
bool pack_int4_row(const Int4Layout& layout, const DecodedRow& decoded, int source_group, int row,
                   std::byte* panel);

}  // namespace sluice::cuda
