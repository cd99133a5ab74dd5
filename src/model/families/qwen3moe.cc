// Qwen3 with a mixture of experts in every layer. Source: the Qwen3 report; transformers' modeling_qwen3_moe
// and llama.cpp's converter for names and defaults. Models that mix in dense layers are refused.
#include "model/families/family.h"

namespace sluice {
namespace {

void read_gguf(const GgufFile&, Numbers& n, ModelSpec& spec) {
  spec.rope = read_gguf_rope(n, 10000);
  spec.qk_norm = true;
  read_gguf_experts(n, spec);
}

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.qk_norm = true;
  spec.experts = n.integer(n.has("num_experts") ? "num_experts" : "num_local_experts", 1, kMaxExperts, 128);
  spec.experts_per_token = n.integer("num_experts_per_tok", 1, kMaxExperts, 8);
  spec.experts_normalised = n.flag("norm_topk_prob", false);
  spec.ffn = n.integer("moe_intermediate_size", 1, 1 << 22, 768);
  if (n.integer("decoder_sparse_step", 1, 1 << 20, 1) != 1)
    n.refuse("decoder_sparse_step", "layers without experts are not supported (1 is)");
  if (!n.list("mlp_only_layers").empty())
    n.refuse("mlp_only_layers", "layers without experts are not supported");
  refuse_flag(n, "attention_bias");
  refuse_flag(n, "use_sliding_window");
}

constexpr std::string_view kTypes[] = {"qwen3_moe"};

}  // namespace

const Family kQwen3Moe = {.name = "qwen3moe",
                          .gguf_architecture = "qwen3moe",
                          .model_types = kTypes,
                          .read_gguf = read_gguf,
                          .read_config = read_config,
                          .layer_names = kDenseLayerNames};

}  // namespace sluice
