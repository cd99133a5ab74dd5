// Quantized matrices as the published folders hold them: what quantized_linear.h reads, bit for bit. Its header
// says how each layout lies.
#pragma once

#include <string>
#include <vector>

#include "model/formats/safetensors_writer.h"
#include "tensor/tensor.h"

namespace sluice {

// [rows, cols] integers, grouped along the columns: w = scale * (q - zero). Scales are numbers that f16 holds.
struct IntegerMatrix {
  int64_t rows = 0, cols = 0;
  int64_t group = 0;          // divides cols
  int bits = 4;               // 4 or 8
  std::vector<uint8_t> q;     // [rows, cols] 0 .. 2^bits - 1
  std::vector<float> scale;   // [rows, cols / group]
  std::vector<uint8_t> zero;  // [rows, cols / group]; the middle, 2^(bits - 1), everywhere: symmetric

  int64_t groups() const { return cols / group; }
};

// [rows, cols] eight-bit floats (e4m3), each times the scale of its block.
struct FloatMatrix {
  int64_t rows = 0, cols = 0;
  int64_t block_rows = 1, block_cols = 0;
  std::vector<uint8_t> bits;  // [rows, cols]
  std::vector<float> scale;   // [ceil(rows / block_rows), ceil(cols / block_cols)]
};

// `base` is what the tensors' names begin with.
std::vector<OutputTensor> awq_tensors(const std::string& base, const IntegerMatrix& m);     // 4 bits, rows by 8
std::vector<OutputTensor> gptq_tensors(const std::string& base, const IntegerMatrix& m);    // zeros from 1 on
std::vector<OutputTensor> packed_tensors(const std::string& base, const IntegerMatrix& m);  // pack-quantized
std::vector<OutputTensor> int8_tensors(const std::string& base,
                                       const IntegerMatrix& m);  // int-quantized, symmetric
std::vector<OutputTensor> fp8_tensors(const std::string& base,
                                      const FloatMatrix& m);  // blocks: weight_scale_inv

}  // namespace sluice
