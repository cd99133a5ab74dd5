// Attention of sequences with one row: split over the context (plan.h), the query heads of a group sharing
// every load of keys and values. Head widths 8, 16, 32, 64, 80, 96, 128, 256; up to 16 query heads per kv head;
// blocks of 16, 32 or 64 tokens. Rows of other sequences are left alone.
#pragma once

#include "tensor/cuda/attention/plan.h"
#include "tensor/cuda/device/context.h"

namespace sluice::cuda {

// Partial results of heads whose context is shared by several CTAs (decode_join.h). All bytes 0xff between
// launches.
struct DecodeScratch {
  float* sums = nullptr;      // [ctas][H / G][D rounded up to 16]
  float2* softmax = nullptr;  // [ctas][H / G]: highest score (base 2), sum of weights
};

bool decode_supports(const KvGeometry& geometry, int heads);
// Raises the kernel's shared memory limit: once, before any capture. Returns the CTAs that fit on the card at
// once.
int decode_prepare(const Context& context, const KvGeometry& geometry, int heads);
size_t decode_scratch_floats(const KvGeometry& geometry, int heads, int ctas);  // of `sums`
size_t decode_scratch_pairs(const KvGeometry& geometry, int heads, int ctas);   // of `softmax`

void decode_clear(const Context& context, const DecodeScratch& scratch, const KvGeometry& geometry, int heads,
                  int ctas);

// `plan_is_done`: a decode kernel of this step has already run with plans enqueued before it. Then the plan and
// the tables are read before the kernel in front is done (0.6 us of 3 to 8), though launch.h allows that of
// weights only. It is right since a decode kernel lets its successor start only when its own wait is over, that
// is when everything before it, the plan and the copies that staged the step too, is done and visible; and all
// that is launched later starts after that.
void decode(const Context& context, const AttentionArgs& args, const DecodePlan& plan,
            const DecodeScratch& scratch, bool plan_is_done);

}  // namespace sluice::cuda
