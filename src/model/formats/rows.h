// Rows of a tensor in a mapped file.
#pragma once

#include <memory>
#include <span>

#include "model/formats/ggml_type.h"
#include "tensor/tensor.h"

namespace sluice {

// `type` must be readable and `data` hold rows * type.row_bytes(cols) bytes; both outlive the source.
std::unique_ptr<RowSource> make_rows(const GgmlType& type, std::span<const std::byte> data, int64_t rows,
                                     int64_t cols);

// The same values plus one, as f32: norms that are stored as w and applied as 1 + w. Float sources only.
std::unique_ptr<RowSource> plus_one(std::unique_ptr<RowSource> source);

// A row as f32, whatever its format. `scratch` is reused from call to call.
void decode_f32(const RowSource& source, int64_t row, DecodedRow& scratch, float* out);

}  // namespace sluice
