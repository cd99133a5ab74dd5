// chunk_kernel.h and tier_kernels.h compiled for one instruction set (cpu/simd/README.md says how and why so).
#include "tensor/cpu/attention/chunk_kernel.h"
#include "tensor/cpu/attention/tier_kernels.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {
// Each needs the one before.
// clang-format off
#include "tensor/cpu/simd/vec_plain.inc"
#include "tensor/cpu/simd/math.inc"
#include "tensor/cpu/attention/chunk_kernel.inc"
#include "tensor/cpu/attention/tier_kernels.inc"
// clang-format on
}  // namespace

const ChunkKernels kChunkKernelsPlain = {pack_q, chunk, fold, finish};
const TierKernels kTierKernelsPlain = {encode_int8, encode_int4, decode_int8, decode_int4};

}  // namespace sluice::cpu
