// Ops that work row by row: norms, rotation, activation, copies. Activations are bf16, sums and the residual
// (embed's output, what the norms take and add to) float32; gather_rows takes both. Each
// function enqueues one kernel on context.stream; its contract is the struct's in tensor/backend.h. All of a
// step's shape that may differ between replays of a recorded step is read from device memory: a row whose
// sequence has kv_length 0 is padding, has table entry -1, and stores nothing.
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/rows/quantized_rows.h"

namespace sluice::cuda {

void embed(const Context&, const EmbedArgs&);
// `copy` of norms and act_mul: where the output is to be written quantized too, or null. The bytes are those of
// quantize_rows(out).
void rms_norm(const Context&, const RmsNormArgs&, const QuantizedRows* copy = nullptr);
void add_rms_norm(const Context&, const AddRmsNormArgs&, const QuantizedRows* copy = nullptr);
void rope_store_kv(const Context&, const RopeStoreArgs&);
void act_mul(const Context&, const ActMulArgs&);
// Writes a.out too where `out_wanted`. a.out has at most so many columns.
inline constexpr int64_t kMostActMulColumns = 32768;
void act_mul_quantized(const Context&, const ActMulArgs&, const QuantizedRows& copy, bool out_wanted);
void gather_rows(const Context&, const Tensor& x, const int32_t* index, const Tensor& out);
// Pairs (from, to) in device memory.
void copy_blocks(const Context&, std::byte* pool, size_t block_bytes, const int32_t* pairs, int count);
// bf16 values, normally distributed, named by (seed, index): bench --dummy.
void fill_random(const Context&, void* bf16, size_t count, uint64_t seed, float deviation);

}  // namespace sluice::cuda
