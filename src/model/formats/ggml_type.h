// The tensor types of GGUF files and how each becomes a canonical weight: the one list of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace sluice {

// Decodes one row: `blocks` blocks from `in`. Writes out.q/scale/min (sized by the caller) or out.raw.
using DecodeBlocks = void (*)(const std::byte* in, int64_t blocks, DecodedRow& out);

struct GgmlType {
  uint32_t id = 0;
  const char* name = "";
  int block = 1;  // columns per block
  int block_bytes = 0;
  WeightFormat canonical;
  DecodeBlocks decode = nullptr;  // of integer types; float rows are copied

  bool readable() const;  // false: known by size only, cannot be loaded

  size_t row_bytes(int64_t cols) const { return size_t(cols / block) * size_t(block_bytes); }
};

// Null: no such type, or one that the format has removed.
const GgmlType* find_ggml_type(uint32_t id);
const GgmlType* find_ggml_type(const char* name);  // readable ones only

}  // namespace sluice
