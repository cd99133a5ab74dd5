// Gemma 3, text part: five layers with a window, then one without, each kind with its own rope base; q/k norms,
// norms before and after each block, embeddings scaled by sqrt(C), gelu, tied head. Source: the Gemma 3 report;
// transformers' modeling_gemma3 and llama.cpp's converter for names and defaults.
#include <cmath>

#include "model/families/family.h"

namespace sluice {
namespace {

// The scale stays float32 on every path. Run in bf16, transformers rounds it (25.25 for C = 640 instead
// of 25.298); the references of this project are float32 throughout, and GGUF's reader does the same.
void read_common(ModelSpec& spec) {
  spec.activation = Activation::gelu_tanh;
  spec.qk_norm = true;
  spec.post_norms = true;
  spec.has_local_rope = true;
  spec.embedding_scale = std::sqrt(float(spec.hidden));
}

// Only global layers are scaled (models beyond 1B were stretched by 8). The 27B, told by its 62 layers, is the
// one whose scores are scaled by C / H instead of the head's width; no key says so.
void read_gguf(const GgufFile&, Numbers& n, ModelSpec& spec) {
  read_common(spec);
  spec.rope = read_gguf_rope(n, 1e6f);
  spec.local_rope.base = n.real("rope.freq_base_swa", 1, 1e12, 10000.f);
  spec.local_rope.rotary = spec.rope.rotary;
  const std::vector<double> flags = n.list("attention.sliding_window_pattern");
  if (flags.empty()) {
    set_window_pattern(spec, n.integer("attention.sliding_window_pattern", 1, 1 << 20, 6));
  } else {
    for (double f : flags) spec.windowed.push_back(f != 0);
  }
  if (spec.layers == 62) spec.attention_scale = 1 / std::sqrt(float(spec.hidden) / float(spec.heads));
  spec.attention_softcap = n.real("attn_logit_softcapping", 0, 1e6, 0.f);
  spec.final_softcap = n.real("final_logit_softcapping", 0, 1e6, 0.f);
}

// The multimodal models' configs nest these numbers in text_config and leave out what equals the defaults.
void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n,
                    {.heads = 8,
                     .kv_heads = 4,
                     .head_dim = 256,
                     .vocab = 262208,
                     .context = 131072,
                     .tied_head = true,
                     .activation = "gelu_pytorch_tanh",
                     .activation_key = "hidden_activation"},
                    spec);
  read_common(spec);
  const bool newer = n.has("rope_parameters.full_attention");
  spec.rope = read_config_rope(n, newer ? "rope_parameters.full_attention" : "rope_parameters", "rope_theta",
                               "rope_scaling", 1e6f);
  spec.local_rope =
      newer ? read_config_rope(n, "rope_parameters.sliding_attention", "", "", 10000) : RopeSpec{};
  if (!newer) spec.local_rope.base = n.real("rope_local_base_freq", 1, 1e12, 10000.f);
  spec.window = n.integer("sliding_window", 0, 1 << 27, 4096);
  if (!read_layer_types(n, spec)) {
    set_window_pattern(spec, n.integer("sliding_window_pattern", 1, 1 << 20,
                                       n.integer("_sliding_window_pattern", 1, 1 << 20, 6)));
  }
  spec.attention_scale = 1 / std::sqrt(n.real("query_pre_attn_scalar", 1e-3, 1e6, 256.f));
  spec.attention_softcap = n.real("attn_logit_softcapping", 0, 1e6, 0.f);
  spec.final_softcap = n.real("final_logit_softcapping", 0, 1e6, 0.f);
  refuse_flag(n, "attention_bias");
  refuse_flag(n, "use_bidirectional_attention");
}

constexpr std::string_view kTypes[] = {"gemma3_text", "gemma3"};

}  // namespace

const Family kGemma3 = {.name = "gemma3",
                        .gguf_architecture = "gemma3",
                        .model_types = kTypes,
                        .read_gguf = read_gguf,
                        .read_config = read_config,
                        .layer_names = kGemmaLayerNames,
                        .norms_plus_one = true};

}  // namespace sluice
