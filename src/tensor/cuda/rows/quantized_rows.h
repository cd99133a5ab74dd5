// Rows of activations as eight bits with scales, for products with eight-bit weights.
#pragma once

#include "tensor/cuda/device/context.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// What both factors of a product are. Eight-bit ones have scales: a row of w and a row of x each, or
// (fp8_blocks) 128 x 128 elements of w and 128 columns of a row of x.
enum class Factors : uint8_t { bf16, fp8, fp8_blocks, int8 };
constexpr int factor_bytes(Factors f) { return f == Factors::bf16 ? 2 : 1; }

// x[m][k] = scale * data[m][k]. With Factors::fp8 and int8 a row has one scale: its largest magnitude becomes
// 448, or 127. fp8_blocks: 128 columns of a row have one, the last perhaps fewer.
struct QuantizedRows {
  void* data = nullptr;     // [rows, cols], dense; e4m3 or s8
  float* scales = nullptr;  // [rows], or of blocks [blocks, scale_stride]
  Factors factors = Factors::fp8;
  int64_t rows = 0, cols = 0;
  int64_t scale_stride = 0;  // of blocks: scales from one block to the next, at least rows
};

// out = x, quantized, on the device. x is bf16, columns a multiple of 16, rows at 16-byte addresses. A row of
// zeros has zeros and a scale that is no zero; NaN and infinity make their row (or block) NaN in fp8.
void quantize_rows(const Context& context, const Tensor& x, const QuantizedRows& out);

}  // namespace sluice::cuda
