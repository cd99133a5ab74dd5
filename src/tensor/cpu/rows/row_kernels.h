// Work on single rows: norms, rotation, activation, storing keys and values, passes over logits. One table per
// instruction set; all functions are pure and run on the thread that calls them.
#pragma once

#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cpu/isa.h"
#include "tensor/sampling.h"

namespace sluice::cpu {

struct RowKernels {
  // out[n] = x / sqrt(mean(x^2) + eps) * weight; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  // residual += x, or += rms_norm(x) * post_weight where that is given (x is overwritten then); out =
  // rms_norm(residual).
  void (*add_rms_norm)(float* residual, float* x, const float* post_weight, const float* weight, float eps,
                       int n, float* out);
  // Pairs (i, i + half) of one head turned by the angles whose cos [half] and sin [half] are given.
  void (*rotate)(float* head, const float* cos, const float* sin, int half);
  // One token's key into a column of K [D][16] and its value into a row of V [16][D padded].
  void (*store_kv)(const float* k, const float* v, int head_dim, uint16_t* k_column, uint16_t* v_row);
  void (*scale)(float* x, float by, int n);
  // out[n] = act(gate) * up
  void (*act_mul)(const float* gate, const float* up, int n, Activation activation, float* out);
  sampling::Kernels sampling;
};

const RowKernels& row_kernels(Isa isa);

extern const RowKernels kRowKernelsPlain;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

}  // namespace sluice::cpu
