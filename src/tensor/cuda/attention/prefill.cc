// What both prefill kernels need before the first step.
#include "tensor/cuda/attention/prefill.h"

namespace sluice::cuda {

void prefill_wgmma_prepare(const KvGeometry& geometry);    // prefill_wgmma.cu
void prefill_general_prepare(const KvGeometry& geometry);  // prefill.cu

void prefill_prepare(const KvGeometry& geometry) {
  if (prefill_uses_wgmma(geometry)) {
    prefill_wgmma_prepare(geometry);
  } else {
    prefill_general_prepare(geometry);
  }
}

}  // namespace sluice::cuda
