// Attention of sequences with one row: split over the context (plan.h), the query heads of a group sharing
// every load of keys and values. Head widths 8, 16, 32, 64, 80, 96, 128, 256; up to 16 query heads per kv head;
// blocks of 16, 32 or 64 tokens. Rows of other sequences are left alone. Pools with tiers: decode_tiered.h.
#pragma once

#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Four values of a head over a piece of its context, not yet divided by the sum of weights. In device memory,
// [2 * ctas] of each CTA's pieces [H / G][D rounded up to 16, / 4]; all bytes 0xff between launches
// (decode_join.h).
struct alignas(32) PieceColumn {
  float4 values;
  float highest, sum;  // of the scores (base 2), of the weights
  float unused[2];
};

bool decode_supports(const KvGeometry& geometry, int heads);
// Raises the kernel's shared memory limit: once, before any capture. Returns the CTAs that fit on the card at
// once, which is as many as a plan may have.
int decode_prepare(const Context& context, const KvGeometry& geometry, int heads);
size_t decode_scratch_bytes(const KvGeometry& geometry, int heads, int ctas);

// `reads_ahead`: before the kernel in front is done it reads its plan, block tables, and keys and values but
// for the tile of the newest token. Those were stored by earlier steps, since no sequence reads blocks that
// another one fills in the same step (kv/prefix_index.h). Allowed where another decode kernel has run since
// plan and tables were made (launch.h, rule 3). Pools with tiers read nothing ahead.
void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan, PieceColumn* pieces,
            bool reads_ahead = false);

}  // namespace sluice::cuda
