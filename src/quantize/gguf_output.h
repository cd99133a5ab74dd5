// Quantized tensors on their way into a folder or into a GGUF file.
#pragma once

#include "model/formats/gguf.h"
#include "quantize/layer_quantizer.h"

namespace sluice::quantize {

// The tensors of a quantized layer in a folder of the plan's layout.
std::vector<OutputTensor> folder_tensors(const Plan& plan, const std::string& base, const Quantized& m);

// A slot's tensor as a GGUF file will hold it: U8 [rows, bytes of a row], called "SLOT:TYPE". Four bits become
// Q4_1, eight Q8_0; what is neither quantized nor replaced keeps its bytes.
Result<std::vector<OutputTensor>> gguf_tensor(const Checkpoint& checkpoint, const std::string& slot,
                                              const Quantized* quantized, const Matrix* replaced);

// A GGUF file at `path` with the keys of `source`, further ones of text, and the tensors of the shards, which
// hold gguf_tensors. It appears when it is whole.
Status write_gguf(const GgufFile& source, std::span<const std::string> shards,
                  const std::vector<std::pair<std::string, std::string>>& texts, const std::string& path);

}  // namespace sluice::quantize
