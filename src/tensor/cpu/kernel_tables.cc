// Which table of kernels an instruction set gets: the only list of what exists.
#include "tensor/cpu/attention/chunk_kernel.h"
#include "tensor/cpu/attention/tier_kernels.h"
#include "tensor/cpu/rows/row_kernels.h"

namespace sluice::cpu {

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return kRowKernelsAvx512;
  if (isa == Isa::avx2) return kRowKernelsAvx2;
#endif
  return kRowKernelsPlain;
}

const ChunkKernels& chunk_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return kChunkKernelsAvx512;
  if (isa == Isa::avx2) return kChunkKernelsAvx2;
#endif
  return kChunkKernelsPlain;
}

const TierKernels& tier_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return kTierKernelsAvx512;
  if (isa == Isa::avx2) return kTierKernelsAvx2;
#endif
  return kTierKernelsPlain;
}

}  // namespace sluice::cpu
