// Qwen3 (dense): no bias, an RMS norm on each head of q and k before the rotation, heads wider than C / H.
// Source: the Qwen3 report; transformers' modeling_qwen3 for names and defaults.
#include "model/families/family.h"

namespace sluice {
namespace {

void read_gguf(const GgufFile&, Numbers& n, ModelSpec& spec) {
  spec.rope = read_gguf_rope(n, 10000);
  spec.qk_norm = true;
}

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {.head_dim = 128}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.qk_norm = true;
  refuse_flag(n, "attention_bias");
  if (!n.flag("use_sliding_window", false)) return;
  spec.window = n.integer("sliding_window", 0, 1 << 27, 0);
  if (read_layer_types(n, spec)) return;
  const int first = n.integer("max_window_layers", 0, 1 << 20, 28);
  for (int layer = 0; layer < spec.layers; layer++) spec.windowed.push_back(layer >= first);
}

constexpr std::string_view kTypes[] = {"qwen3"};

}  // namespace

const Family kQwen3 = {.name = "qwen3",
                       .gguf_architecture = "qwen3",
                       .model_types = kTypes,
                       .read_gguf = read_gguf,
                       .read_config = read_config,
                       .layer_names = kDenseLayerNames};

}  // namespace sluice
