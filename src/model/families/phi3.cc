// Phi-3 and Phi-4: Llama with q, k and v stored as one matrix, gate and up as another; in some (Phi-4-mini)
// only the first part of each head rotates. Source: the Phi-3 report; transformers' modeling_phi3 and
// llama.cpp's converter for names and defaults. The long-context models' rope scaling (longrope) is refused.
#include <cmath>

#include "model/families/family.h"

namespace sluice {
namespace {

void read_gguf(const GgufFile& file, Numbers& n, ModelSpec& spec) {
  spec.rope = read_gguf_rope(n, 10000);
  spec.fused_projections = true;
  if (file.tensor("rope_factors_long.weight") || file.tensor("rope_factors_short.weight"))
    n.refuse("rope.scaling.original_context_length", "long-context rope factors (longrope) are not supported");
}

void read_config(Numbers& n, ModelSpec& spec) {
  // Newer files keep the rotating share with the rope's other numbers.
  const float inner =
      n.section("rope_parameters") ? n.real("rope_parameters.partial_rotary_factor", 0, 1, 1.f) : 1.f;
  const float share = n.real("partial_rotary_factor", 0, 1, inner);
  read_config_sizes(n, {.norm_eps = 1e-5f, .partial_rotary = true}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.rope.rotary = int(float(spec.head_dim) * share);
  spec.fused_projections = true;
  spec.window = n.integer("sliding_window", 0, 1 << 27, 0);  // null: none
  read_layer_types(n, spec);
  refuse_flag(n, "attention_bias");
}

constexpr std::string_view kTypes[] = {"phi3"};

constexpr SlotName kNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"}, {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_up.weight", "mlp.gate_up_proj.weight"},      {"ffn_down.weight", "mlp.down_proj.weight"},
};

}  // namespace

const Family kPhi3 = {.name = "phi3",
                      .gguf_architecture = "phi3",
                      .model_types = kTypes,
                      .read_gguf = read_gguf,
                      .read_config = read_config,
                      .layer_names = kNames};

}  // namespace sluice
