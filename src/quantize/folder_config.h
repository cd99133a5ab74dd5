// config.json of a quantized folder.
#pragma once

#include <string>
#include <vector>

#include "quantize/plan.h"

namespace sluice::quantize {

// The value of "quantization_config" as the layout's readers expect it. `kept` lists linear layers that stay as
// they are, by Hugging Face's names without ".weight".
std::string quantization_config(const Plan& plan, const std::vector<std::string>& kept);

// config.json of a folder, with members added before its last brace. Error: it is quantized already.
Result<std::string> extended_config(const std::string& config, const std::string& path,
                                    const std::string& members);

// config.json from a model's numbers, for what was a GGUF file. Error (kUnsupported): a family or a setting
// that cannot be said.
Result<std::string> config_from_numbers(const ModelSpec& spec, const std::string& path,
                                        const std::string& members);

}  // namespace sluice::quantize
