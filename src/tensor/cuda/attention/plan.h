// The step's attention work, planned on the device by one small kernel and read by all layers.
#pragma once

#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// One piece of one sequence's context for the decode kernel. Pieces of a sequence are consecutive items.
struct DecodeItem {
  int32_t sequence;
  int32_t begin, end;     // cached positions [begin, end) that this piece reads; empty for padding
  int32_t piece, pieces;  // which of how many of this sequence
};

// One tile of query rows of one sequence for the prefill kernel.
struct PrefillItem {
  int32_t sequence;
  int32_t row_begin, row_end;  // of the step's rows
};

// In device memory. Decode plans differ by window: one for full attention, one for windowed layers.
struct DecodePlan {
  int32_t* count;     // items
  DecodeItem* items;  // [capacity]
};
struct PrefillPlan {
  int32_t* count;
  PrefillItem* items;  // longest contexts first
};

}  // namespace sluice::cuda
