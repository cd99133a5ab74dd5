// The kernels of one instruction set. What exists is the table in linear.cc.
#pragma once

#include "tensor/cpu/linear/layout.h"

namespace sluice::cpu {

// Rows [begin, end) of x [.., cols] to two int8 planes each. The formula is the same everywhere: per 32 columns
// scale = amax / 16319 and q = round-to-even(x * (16319 / amax)), which the planes hold as high * 128 + low;
// amax below 1e-34 gives zeros; a NaN or infinity gives q = 0 and scale NaN, so that the outputs of that row
// are NaN.
using QuantizeFn = void (*)(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                            int64_t end);

// out[:, 16 * tile_begin .. 16 * tile_end) for all rows of x.
using TilesFn = void (*)(const Job& job, int64_t tile_begin, int64_t tile_end);

// Whether an integer part times m rows wants x as words. Any answer gives the same bits.
using TakesWordsFn = bool (*)(const PackedHeader& h, int64_t m);

// Rows [begin, end) of x [.., cols] to pairs of bf16.
using SplitFn = void (*)(const float* x, int64_t stride, int64_t cols, const SplitRows& out, int64_t begin,
                         int64_t end);

void quantize_scalar(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                     int64_t end);
void tiles_scalar(const Job& job, int64_t tile_begin, int64_t tile_end);

void quantize_avx2(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                   int64_t end);
void tiles_avx2(const Job& job, int64_t tile_begin, int64_t tile_end);
void tiles_avx2_words(const Job& job, int64_t tile_begin, int64_t tile_end);
bool takes_words_avx2(const PackedHeader& h, int64_t m);

void quantize_avx512(const float* x, int64_t stride, int64_t cols, const QuantRows& out, int64_t begin,
                     int64_t end);
void tiles_avx512_vnni(const Job& job, int64_t tile_begin, int64_t tile_end);

void split_amx(const float* x, int64_t stride, int64_t cols, const SplitRows& out, int64_t begin, int64_t end);
void tiles_amx_bf16(const Job& job, int64_t tile_begin, int64_t tile_end);
void tiles_amx(const Job& job, int64_t tile_begin, int64_t tile_end);

}  // namespace sluice::cpu
