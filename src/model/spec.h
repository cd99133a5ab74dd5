// What a model is, in numbers. No pointers, no names of formats. Filled by model/families from a GGUF header or
// config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/backend.h"

namespace sluice {

// One set of rotation frequencies; a model has one, or two where local layers have their own base (Gemma 3).
struct RopeSpec {
  float base = 10000;
  int rotary = 0;  // rotated columns per head; 0: head_dim
  enum class Scaling : uint8_t { none, linear, llama3 } scaling = Scaling::none;
  float factor = 1;             // linear and llama3
  float low_freq_factor = 1;    // llama3: wavelengths longer than original_context / low are divided by factor
  float high_freq_factor = 4;   // llama3: shorter than original_context / high stay
  int original_context = 8192;  // llama3

  // [rotary / 2] with the scaling folded in.
  std::vector<float> inverse_frequencies(int head_dim) const;
};

struct ModelSpec {
  std::string architecture;  // "llama", "qwen3", "gemma3": the family's file in model/families
  std::string name;          // from the file, for people
  int layers = 0;
  int hidden = 0;                   // C
  int heads = 0;                    // H
  int kv_heads = 0;                 // G
  int head_dim = 0;                 // D
  int ffn = 0;                      // F; of one expert where there are several
  int experts = 0;                  // E; 0: one feed-forward for all tokens
  int experts_per_token = 0;        // K
  bool experts_normalised = false;  // the weights of a token's experts sum to 1
  int vocab = 0;                    // V
  int context = 0;                  // tokens the model was trained for
  float norm_eps = 1e-5f;
  float attention_scale = 0;  // multiplies q·k; 1/sqrt(D) unless the family says otherwise
  float embedding_scale = 1;
  Activation activation = Activation::silu;
  bool qkv_bias = false;
  bool qk_norm = false;     // per-head RMS norm of q and k
  bool post_norms = false;  // Gemma: norms after attention and after the feed-forward, before each addition
  bool fused_projections = false;  // files hold q, k, v as one matrix, and gate and up as one
  bool tied_head = false;
  float attention_softcap = 0;
  float final_softcap = 0;
  RopeSpec rope;
  RopeSpec local_rope;  // of windowed layers, where has_local_rope
  bool has_local_rope = false;
  int window = 0;                 // sliding window of windowed layers, tokens; 0: none
  std::vector<uint8_t> windowed;  // [layers]; empty: no layer is, unless window > 0 and it is then all of them
  int full_window = 0;  // of the other layers, where a window is forced upon them; 0: they see everything

  bool layer_windowed(int layer) const { return window > 0 && (windowed.empty() || windowed[size_t(layer)]); }
  int layer_window(int layer) const { return layer_windowed(layer) ? window : full_window; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Layers that share block tables. Every group has `layers_per_group` layers (the last of a kind may be padded),
// so that blocks of all groups have one size and come from one pool: windowed layers then hold only their
// window.
struct LayerGroups {
  struct Group {
    int window = 0;  // 0: keeps everything
  };
  std::vector<Group> groups;
  int layers_per_group = 0;
  std::vector<int> group_of;  // [layers]
  std::vector<int> index_in;  // [layers] layer's place within its group
};

// Chooses groups so that at most 15 % of the cache is padding. Pure.
LayerGroups layer_groups(const ModelSpec& spec);

}  // namespace sluice
