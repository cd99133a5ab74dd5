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

// What is read before the kernel in front is done (launch.h), once another decode kernel of the same step has
// run since the plans were enqueued. launch.h allows nothing of this kind. It is right nevertheless, since a
// decode kernel lets its successor start only when its own wait is over: then everything before it, the plans
// and the copies that staged the step too, is done and visible, and all that is launched later starts after
// that. Per call, in a chain of decode kernels (four warps a CTA, an older way to join):
// nothing 7.0, 11.7, 79.6 us; plan 6.5, 11.0, 79.2; cache 5.5, 9.3, 76.9, at 1 x 512, 8 x 576 and 128 x 576.
enum class ReadAhead : uint8_t {
  nothing,
  plan,   // and block tables
  cache,  // and keys and values, but for the tile of the newest token: those of a sequence with one row were
          // stored by earlier steps. (Not true if a sequence may read blocks that another one fills in the same
          // step.)
};
void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan, PieceColumn* pieces,
            ReadAhead ahead);

}  // namespace sluice::cuda
