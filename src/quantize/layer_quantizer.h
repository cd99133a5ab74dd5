// One layer: its matrices as float32, what calibration saw of their inputs, and from the two the quantized
// layer.
#pragma once

#include <map>
#include <string>
#include <variant>

#include "quantize/plan.h"

namespace sluice::quantize {

using Quantized = std::variant<IntegerMatrix, FloatMatrix>;

// By slot without "blk.N.".
struct QuantizedLayer {
  std::map<std::string, Quantized, std::less<>> matrices;
  Replacements replaced;  // tensors that are not quantized but took factors: norms, biases
};

// Error (kCorrupt): a NaN or an infinity; names the tensor and the row, as the file counts them.
Status check_finite(const Checkpoint& checkpoint, const std::string& slot, int64_t row,
                    std::span<const float> values);

// A tensor as float32 in the order in which it is packed. Errors: check_finite's.
Result<Matrix> read_tensor(const Checkpoint& checkpoint, const std::string& slot);

// What calibration keeps for each input of a layer, where the plan's method wants it.
using LayerStatistics = std::map<Input, Statistics>;
LayerStatistics statistics_for(const Plan& plan, const ModelSpec& spec);

struct LayerTools {
  Products& products;
  int threads = 1;
};

// `statistics` is finished here. Errors: read_tensor's.
Result<QuantizedLayer> quantize_layer(const Checkpoint& checkpoint, int layer, const Plan& plan,
                                      LayerStatistics& statistics, LayerTools tools);

// The layer as it will be computed, for the inputs of the next.
Replacements dequantized(const QuantizedLayer& layer);

}  // namespace sluice::quantize
