// Attention of sequences with one row: split over the context (plan.h), the query heads of a group sharing
// every load of keys and values. Head widths 8, 16, 32, 64, 80, 96, 128, 256; up to 16 query heads per kv head;
// blocks of 16, 32 or 64 tokens. Rows of other sequences are left alone.
#pragma once

#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Partial results of heads whose context is shared by several CTAs. Tickets are zero between launches.
struct DecodeScratch {
  float* sums = nullptr;       // [2 * ctas][H / G][D rounded up to 16]
  float2* softmax = nullptr;   // [2 * ctas][H / G]: highest score (base 2), sum of weights
  int32_t* tickets = nullptr;  // [kMaxSequences][G]: pieces done
};

bool decode_supports(const KvGeometry& geometry, int heads);
// Raises the kernel's shared memory limit: once, before any capture. Returns the CTAs that fit on the card at
// once.
int decode_prepare(const Context& context, const KvGeometry& geometry, int heads);
size_t decode_scratch_floats(const KvGeometry& geometry, int heads, int ctas);  // of `sums`
size_t decode_scratch_pairs(const KvGeometry& geometry, int heads, int ctas);   // of `softmax`

void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan,
            const DecodeScratch& scratch);

}  // namespace sluice::cuda
