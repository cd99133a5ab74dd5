// Gemma 2: layers with a window and without in turn, soft caps on scores and logits, norms before and after
// each block, embeddings scaled by sqrt(C), gelu, tied head. Source: the Gemma 2 report; transformers'
// modeling_gemma2 and llama.cpp's converter for names and defaults.
#include <cmath>

#include "model/families/family.h"

namespace sluice {
namespace {

constexpr float kScoreCap = 50, kLogitCap = 30;

void read_common(Numbers& n, ModelSpec& spec) {
  spec.activation = Activation::gelu_tanh;
  spec.post_norms = true;
  spec.embedding_scale = std::sqrt(float(spec.hidden));
  spec.attention_softcap = n.real("attn_logit_softcapping", 0, 1e6, kScoreCap);
  spec.final_softcap = n.real("final_logit_softcapping", 0, 1e6, kLogitCap);
}

// The 27B, told by its 46 layers, is the one whose scores are scaled by C / H instead of the head's width; no
// key says so.
void read_gguf(const GgufFile&, Numbers& n, ModelSpec& spec) {
  read_common(n, spec);
  spec.rope = read_gguf_rope(n, 10000);
  spec.window = n.integer("attention.sliding_window", 0, 1 << 27, 4096);
  set_window_pattern(spec, 2);
  if (spec.layers == 46) spec.attention_scale = 1 / std::sqrt(float(spec.hidden) / float(spec.heads));
}

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n,
                    {.head_dim = 256,
                     .context = 8192,
                     .tied_head = true,
                     .activation = "gelu_pytorch_tanh",
                     .activation_key = "hidden_activation"},
                    spec);
  read_common(n, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  spec.window = n.integer("sliding_window", 0, 1 << 27, 4096);
  if (!read_layer_types(n, spec)) set_window_pattern(spec, 2);
  spec.attention_scale = 1 / std::sqrt(n.real("query_pre_attn_scalar", 1e-3, 1e6, 256.f));
  refuse_flag(n, "attention_bias");
  refuse_flag(n, "use_bidirectional_attention");
}

constexpr std::string_view kTypes[] = {"gemma2"};

}  // namespace

const Family kGemma2 = {.name = "gemma2",
                        .gguf_architecture = "gemma2",
                        .model_types = kTypes,
                        .read_gguf = read_gguf,
                        .read_config = read_config,
                        .layer_names = kGemmaLayerNames,
                        .norms_plus_one = true};

}  // namespace sluice
