// Decode over blocks of several precisions in one call (decode.h's contract; tensor/kv_tier.h): 64-token
// blocks, heads of 64, 128 or 256 columns, up to 8 query heads per kv head. decode.cu chooses by
// KvGeometry::tiered, so pools of one precision do not pay for it.
#pragma once

#include "tensor/cuda/attention/decode_tile.h"

namespace sluice::cuda {

struct TieredArgs : DecodeArgs {
  const std::byte* pool;
  int64_t quarter_bytes;  // of a slot
  int first_strip;        // of the layer
};

struct TieredKernel {
  void (*kernel)(TieredArgs) = nullptr;
  size_t shared_bytes = 0;
  int width = 0, threads = 0;
};
// Without a kernel where there is none.
TieredKernel tiered_kernel(const KvGeometry& geometry, int heads);

}  // namespace sluice::cuda
