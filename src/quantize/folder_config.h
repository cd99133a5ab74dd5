// config.json of a quantized folder.
#pragma once

#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "quantize/plan.h"

namespace sluice::quantize {

// Linear layers by Hugging Face's names without ".weight": those of the model that stay as they are, and those
// of any layer ("mlp.up_proj") that are quantized, together where they read the same input.
struct LinearNames {
  std::vector<std::string> kept;
  std::vector<std::vector<std::string>> quantized;
};

// What is said of a model whose `file` has such a `key`.
Error quantized_already(const std::string& file, const char* key);

// The value of "quantization_config" as the layout's readers expect it.
std::string quantization_config(const Plan& plan, const LinearNames& names);

// config.json of a folder, with members added before its last brace. Error: it is quantized already.
Result<std::string> extended_config(const std::string& config, const std::string& path,
                                    const std::string& members);

// A GGUF model's numbers with the scaling of its rotation named, which the file holds as divisors of the
// frequencies: one of the two that were published (Llama 3.1: 8, 3.2: 32; both with 1, 4 and 8192). Error
// (kUnsupported): another.
Result<ModelSpec> spec_of_config(const Checkpoint& checkpoint);

// config.json from a model's numbers, for what was a GGUF file. Error (kUnsupported): a family or a setting
// that cannot be said.
Result<std::string> config_from_numbers(const ModelSpec& spec, const std::string& path,
                                        const std::string& members);

}  // namespace sluice::quantize
