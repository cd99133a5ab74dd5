// What a model family is: how its numbers are read, and what its tensors are called. One file per family; the
// list of them is `families()` in family.cc, and a new family is a file and a line there.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/families/numbers.h"
#include "model/formats/gguf.h"
#include "model/spec.h"

namespace sluice {

// A slot (GGUF's name, `blk.N.` left out for a layer's) and the Hugging Face name of the same tensor
// (`layers.N.` and the `model.` before it left out). An asterisk stands for an expert's number.
struct SlotName {
  std::string_view slot;
  std::string_view hugging_face;
};

struct Family {
  std::string_view name;                    // ModelSpec::architecture
  std::string_view gguf_architecture = {};  // general.architecture; empty: GGUF has none of its own for it
  std::span<const std::string_view> model_types;  // config.json's model_type
  void (*read_gguf)(const GgufFile&, Numbers&, ModelSpec&) = nullptr;
  void (*read_config)(Numbers&, ModelSpec&) = nullptr;
  std::span<const SlotName> layer_names;
  bool gguf_interleaves = false;  // GGUF's q/k rows are ordered for rotation of neighbouring elements
  bool norms_plus_one = false;    // Hugging Face stores w and applies 1 + w; GGUF stores 1 + w
};

std::span<const Family* const> families();
const Family* find_family(std::string_view name);  // null: there is none of that name

// Hugging Face's name of a slot's tensor, where the decoder's names begin with `prefix` ("model."); empty if
// the family has none.
std::string hugging_face_name(const Family& family, std::string_view slot, std::string_view prefix);

extern const Family kGemma2, kGemma3, kLlama, kMistral, kMixtral, kPhi3, kQwen2, kQwen3, kQwen3Moe;

// "gemma3, llama, …" for the message that refuses another.
std::string supported_families();

// The numbers of `family` from a GGUF header, or from config.json (`prefix` "text_config." where the numbers
// are nested there). Errors name the file and the key; the result has passed check_spec.
Result<ModelSpec> read_gguf_spec(const Family& family, const GgufFile& file);
Result<ModelSpec> read_config_spec(const Family& family, const KeyValues& config, const std::string& path,
                                   const std::string& prefix);

// Relations between the numbers that the decoder relies on. `path` serves messages.
Status check_spec(const ModelSpec& spec, const std::string& path);

// -- What the families share: decoders with grouped-query attention and a gated feed-forward, or a mixture of
// such.

// Sizes, norm epsilon, rope base and scaling, window. `n` has the prefix "ARCHITECTURE.".
void read_gguf_sizes(const GgufFile& file, Numbers& n, ModelSpec& spec);
RopeSpec read_gguf_rope(Numbers& n, float default_base);

// What a config.json may leave out takes the value of these.
struct ConfigDefaults {
  int heads = 0, kv_heads = 0, head_dim = 0, vocab = 0,
      context = 0;  // 0: required (kv_heads: heads, head_dim: C / H)
  float norm_eps = 1e-6f, rope_base = 10000;
  bool tied_head = false;
  bool partial_rotary = false;  // the family reads partial_rotary_factor itself; else only 1 is taken
  std::string_view activation = "silu";
  std::string_view activation_key = "hidden_act";
};
void read_config_sizes(Numbers& n, const ConfigDefaults& defaults, ModelSpec& spec);
// `section`: where the newer layout keeps the rope's numbers ("rope_parameters"); the older one is `base_key`
// with `scaling_section` ("rope_theta", "rope_scaling").
RopeSpec read_config_rope(Numbers& n, const std::string& section, const std::string& base_key,
                          const std::string& scaling_section, float default_base);
// expert_count and the like; every token's experts are weighted to sum to 1, as llama.cpp has it for these
// families.
void read_gguf_experts(Numbers& n, ModelSpec& spec);
// layer_types -> spec.windowed; false if the key is absent.
bool read_layer_types(Numbers& n, ModelSpec& spec);
// Every pattern-th layer sees everything, the others have the window.
void set_window_pattern(ModelSpec& spec, int pattern);
// Biases that the decoder has no place for.
void refuse_flag(Numbers& n, std::string_view key);

inline constexpr SlotName kDenseLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate.*.weight", "mlp.experts.*.gate_proj.weight"},
    {"ffn_up.*.weight", "mlp.experts.*.up_proj.weight"},
    {"ffn_down.*.weight", "mlp.experts.*.down_proj.weight"},
};

// Gemma 2 and 3; without q/k norms in the former.
inline constexpr SlotName kGemmaLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
};

}  // namespace sluice
