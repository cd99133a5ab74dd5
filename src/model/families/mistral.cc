// Mistral 7B and its kin: Llama with a sliding window on every layer (where one is given) and a head width of
// its own. In GGUF these models are published under "llama", and llama.cc reads them. Source: the Mistral 7B
// paper; transformers' modeling_mistral for names and defaults.
#include "model/families/family.h"

namespace sluice {
namespace {

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.window = n.integer("sliding_window", 0, 1 << 27, 0);  // null in later models: none
  read_layer_types(n, spec);
}

constexpr std::string_view kTypes[] = {"mistral"};

}  // namespace

const Family kMistral = {
    .name = "mistral", .model_types = kTypes, .read_config = read_config, .layer_names = kDenseLayerNames};

}  // namespace sluice
