// Qwen2 and Qwen2.5: Llama with a bias on q, k and v.
// Source: the Qwen2 report; transformers' modeling_qwen2 for names and defaults.
#include "model/families/family.h"

namespace sluice {
namespace {

void read_gguf(const GgufFile&, Numbers& n, ModelSpec& spec) {
  spec.rope = read_gguf_rope(n, 10000);
  spec.qkv_bias = true;
}

// The window is written in every config and used in few: only with use_sliding_window, from layer
// max_window_layers on.
void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.qkv_bias = true;
  if (!n.flag("use_sliding_window", false)) return;
  spec.window = n.integer("sliding_window", 0, 1 << 27, 0);
  if (read_layer_types(n, spec)) return;
  const int first = n.integer("max_window_layers", 0, 1 << 20, 28);
  for (int layer = 0; layer < spec.layers; layer++) spec.windowed.push_back(layer >= first);
}

constexpr std::string_view kTypes[] = {"qwen2"};

}  // namespace

const Family kQwen2 = {.name = "qwen2",
                       .gguf_architecture = "qwen2",
                       .model_types = kTypes,
                       .read_gguf = read_gguf,
                       .read_config = read_config,
                       .layer_names = kDenseLayerNames};

}  // namespace sluice
