// chunk_kernel.h compiled for one instruction set (cpu/simd/README.md says how and why so).
#include "tensor/cpu/attention/chunk_kernel.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {
// Each needs the one before.
// clang-format off
#include "tensor/cpu/simd/vec_plain.inc"
#include "tensor/cpu/simd/math.inc"
#include "tensor/cpu/attention/chunk_kernel.inc"
// clang-format on
}  // namespace

const ChunkKernels kChunkKernelsPlain = {pack_q, chunk, fold, finish};

}  // namespace sluice::cpu
