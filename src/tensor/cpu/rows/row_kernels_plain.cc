// row_kernels.h compiled for one instruction set (cpu/simd/README.md says how and why so).
#include "tensor/cpu/rows/row_kernels.h"
#include "tensor/half.h"

namespace sluice::cpu {
namespace {
// Each needs the one before.
// clang-format off
#include "tensor/cpu/simd/vec_plain.inc"
#include "tensor/cpu/simd/math.inc"
#include "tensor/cpu/rows/row_kernels.inc"
// clang-format on
}  // namespace

const RowKernels kRowKernelsPlain = {rms_norm,
                                     add_rms_norm,
                                     rotate,
                                     store_kv,
                                     scale,
                                     act_mul,
                                     {softcap_logits, arg_max, sum_exp, count_above, collect}};

}  // namespace sluice::cpu
