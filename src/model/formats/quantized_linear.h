// Linear layers that a Hugging Face folder holds as integers or eight-bit floats in several tensors: AWQ, GPTQ,
// FP8, compressed-tensors. What becomes of each is a RowSource like any other; nothing beyond this file knows
// these layouts.
//
// Sources: casper-hansen/AutoAWQ (gemm layout), AutoGPTQ and GPTQModel (checkpoint formats gptq and gptq_v2),
// transformers' fine-grained FP8; compressed-tensors (its compressors). [N, K]: outputs, inputs; g: columns per
// scale.
//   awq    qweight i32 [K, N / 8], qzeros i32 [K / g, N / 8], scales f16 [K / g, N]; w = (q - z) * s. The
//   nibbles of a
//          word hold columns 0 2 4 6 1 3 5 7 of its eight, lowest first.
//   gptq   qweight i32 [K * bits / 32, N] along the inputs, qzeros i32 [K / g, N * bits / 32] along the
//   outputs, scales
//          f16 [K / g, N], g_idx i32 [K] (each input's group; with desc_act in any order). Lowest bits first.
//          Stored zeros are z - 1, but in gptq_v2.
//   fp8    weight e4m3 [N, K] with weight_scale_inv f32 [ceil(N / b), ceil(K / b')] per block, or weight_scale:
//   one
//          number, or [N, 1] one per output.
//   compressed-tensors, by what stands in the folder for each layer:
//          weight_packed i32 [N, K * bits / 32] with weight_scale [N, K / g], weight_shape, perhaps
//          weight_zero_point i32 [N * bits / 32, K / g] (without: the middle) and weight_g_idx; or weight i8
//          [N, K] with weight_scale [N, 1], [N, K / g] or one number, perhaps weight_zero_point i8 of that
//          shape; or weight e4m3 as above, the scales of blocks called weight_scale. Layers that it ignores
//          stand there as plain tensors.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/formats/json_values.h"
#include "model/formats/safetensors.h"
#include "tensor/tensor.h"

namespace sluice {

// config.json's quantization_config in numbers.
struct Quantization {
  enum class Method : uint8_t { none, awq, gptq, fp8, compressed } method = Method::none;
  int bits = 0;   // awq and gptq, as group; the other layouts say it by their tensors' shapes
  int group = 0;  // columns per scale; 0: the whole row
  bool zeros_less_one = false;
  int block_rows = 0, block_cols = 0;  // fp8; 0: a scale per output, or one for all
};

// Errors name file and key: a method, bits or a layout that is not read.
Result<Quantization> read_quantization(const JsonValues& config, const std::string& path);

// One quantized layer of a folder, its tensors checked against [rows, cols]. `release` what its rows were read
// from.
struct QuantizedLinear {
  std::unique_ptr<RowSource> rows;
  std::vector<const SafetensorsTensor*> tensors;
  std::string type;    // for people: "AWQ 4-bit"
  bool lossy = false;  // rounded beyond what the format says: f16 of shuffled groups
};

// The layer whose tensors are called `base` + ".qweight" and so on. `rows` null: there is no such layer, and it
// may stand in the folder as a plain tensor. Errors name the tensor.
Result<QuantizedLinear> find_quantized(const Quantization& quantization, const SafetensorsFolder& folder,
                                       const std::string& base, int64_t rows, int64_t cols);

}  // namespace sluice
