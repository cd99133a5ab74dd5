// Weights packed for the CPU kernels, and the matrix products over them.
#pragma once

#include <span>

#include "tensor/backend.h"
#include "tensor/cpu/isa.h"
#include "tensor/cpu/team.h"

namespace sluice::cpu {

// Scratch that one `linear` call needs (quantized activations and their sums), bytes.
size_t linear_scratch_bytes(Isa isa, int64_t max_rows, int64_t max_columns);

Result<Weight> pack_weight(Backend& owner, Team& team, Isa isa, std::span<const Backend::PackSource> sources);

// out = x · wᵀ (+ bias); see LinearArgs. x and out are f32. `scratch` holds linear_scratch_bytes.
void linear(Team& team, Isa isa, const LinearArgs& a, std::byte* scratch);

// One row of a packed weight as f32 [cols] (the embedding of a tied table).
void unpack_row(Isa isa, const Weight& w, int64_t row, float* out);

}  // namespace sluice::cpu
