// Mixtral: Mistral with a mixture of experts in place of the feed-forward. In GGUF these models are published
// under "llama", and llama.cc reads them. Source: the Mixtral report; transformers' modeling_mixtral for names
// and defaults.
#include "model/families/family.h"

namespace sluice {
namespace {

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {.norm_eps = 1e-5f}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 1e6f);
  spec.window = n.integer("sliding_window", 0, 1 << 27, 0);
  spec.experts = n.integer("num_local_experts", 1, kMaxExperts, 8);
  spec.experts_per_token = n.integer("num_experts_per_tok", 1, kMaxExperts, 2);
  spec.experts_normalised = true;
}

constexpr std::string_view kTypes[] = {"mixtral"};

constexpr SlotName kNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
    {"ffn_gate.*.weight", "block_sparse_moe.experts.*.w1.weight"},
    {"ffn_up.*.weight", "block_sparse_moe.experts.*.w3.weight"},
    {"ffn_down.*.weight", "block_sparse_moe.experts.*.w2.weight"},
};

}  // namespace

const Family kMixtral = {
    .name = "mixtral", .model_types = kTypes, .read_config = read_config, .layer_names = kNames};

}  // namespace sluice
