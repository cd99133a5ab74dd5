// What dense decoders share, whatever their family: the keys of GGUF and of config.json that all of them have.
#include <fmt/format.h>

#include "model/families/family.h"
#include "model/formats/shown.h"

namespace sluice {
namespace {

// Bounds of plausible models, far above any published one; products of two of them fit 64 bits.
constexpr int kMaxLayers = 1024, kMaxHidden = 1 << 17, kMaxHeads = 1024, kMaxHeadDim = 1024, kMaxFfn = 1 << 20,
              kMaxVocab = 1 << 23, kMaxContext = 1 << 27;
// Less context is of no use, and the engine's warm-up asks for some.
constexpr int kMinContext = 16;
constexpr double kMinEpsilon = 1e-12, kMaxEpsilon = 0.1;

RopeSpec::Scaling scaling_of(Numbers& n, const std::string& key, const std::string& name) {
  if (name == "none" || name == "default") return RopeSpec::Scaling::none;
  if (name == "linear") return RopeSpec::Scaling::linear;
  if (name == "llama3") return RopeSpec::Scaling::llama3;
  n.refuse(key, fmt::format("rope scaling {} is not supported (none, linear and llama3 are)", shown(name)));
  return RopeSpec::Scaling::none;
}

void read_scaling(Numbers& n, const std::string& section, RopeSpec& rope) {
  const std::string type_key = section + (n.has(section + ".rope_type") ? ".rope_type" : ".type");
  rope.scaling = scaling_of(n, type_key, n.text(type_key, "default"));
  if (rope.scaling == RopeSpec::Scaling::none) return;
  rope.factor = n.real(section + ".factor", 1e-3, 1e6);
  if (rope.scaling == RopeSpec::Scaling::llama3) {
    rope.low_freq_factor = n.real(section + ".low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = n.real(section + ".high_freq_factor", 1e-3, 1e6);
    rope.original_context = n.integer(section + ".original_max_position_embeddings", 1, kMaxContext);
  }
}

}  // namespace

void read_gguf_sizes(const GgufFile& file, Numbers& n, ModelSpec& spec) {
  spec.layers = n.integer("block_count", 1, kMaxLayers);
  spec.hidden = n.integer("embedding_length", 1, kMaxHidden);
  spec.ffn = n.integer("feed_forward_length", 1, kMaxFfn);
  spec.heads = n.integer("attention.head_count", 1, kMaxHeads);
  spec.kv_heads = n.integer("attention.head_count_kv", 1, kMaxHeads, spec.heads);
  spec.head_dim = n.integer("attention.key_length", 1, kMaxHeadDim, spec.hidden / spec.heads);
  if (n.integer("attention.value_length", 1, kMaxHeadDim, spec.head_dim) != spec.head_dim) {
    n.refuse("attention.value_length", "values as wide as keys are expected");
  }
  spec.context = n.integer("context_length", kMinContext, kMaxContext);
  spec.norm_eps = n.real("attention.layer_norm_rms_epsilon", kMinEpsilon, kMaxEpsilon);
  spec.window = n.integer("attention.sliding_window", 0, kMaxContext, 0);
  const GgufTensor* embedding = file.tensor("token_embd.weight");
  spec.vocab = embedding && embedding->rows() <= kMaxVocab ? int(embedding->rows())
                                                           : n.integer("vocab_size", 1, kMaxVocab);
  spec.tied_head = file.tensor("output.weight") == nullptr;
}

void read_gguf_experts(Numbers& n, ModelSpec& spec) {
  spec.experts = n.integer("expert_count", 0, kMaxExperts, 0);
  if (spec.experts == 0) return;
  spec.experts_per_token = n.integer("expert_used_count", 1, kMaxExperts);
  spec.experts_normalised = true;
  spec.ffn = n.integer("expert_feed_forward_length", 1, kMaxFfn, spec.ffn);
}

RopeSpec read_gguf_rope(Numbers& n, float default_base) {
  RopeSpec rope;
  rope.base = n.real("rope.freq_base", 1, 1e12, default_base);
  rope.rotary = n.integer("rope.dimension_count", 0, kMaxHeadDim, 0);
  rope.scaling = scaling_of(n, "rope.scaling.type", n.text("rope.scaling.type", "none"));
  rope.factor = n.real("rope.scaling.factor", 1e-3, 1e6, 1.f);
  if (n.has("rope.scale_linear")) {  // before scaling had a type
    rope.factor = n.real("rope.scale_linear", 1e-3, 1e6);
    rope.scaling = RopeSpec::Scaling::linear;
  }
  if (rope.scaling == RopeSpec::Scaling::llama3) {
    n.refuse("rope.scaling.type", "llama3 scaling is expected as the tensor 'rope_freqs.weight'");
  }
  return rope;
}

void read_config_sizes(Numbers& n, const ConfigDefaults& d, ModelSpec& spec) {
  const auto or_required = [](int value) { return value ? std::optional(value) : std::nullopt; };
  spec.layers = n.integer("num_hidden_layers", 1, kMaxLayers);
  spec.hidden = n.integer("hidden_size", 1, kMaxHidden);
  spec.ffn = n.integer("intermediate_size", 1, kMaxFfn);
  spec.heads = n.integer("num_attention_heads", 1, kMaxHeads, or_required(d.heads));
  spec.kv_heads = n.integer("num_key_value_heads", 1, kMaxHeads, d.kv_heads ? d.kv_heads : spec.heads);
  spec.head_dim = n.integer("head_dim", 1, kMaxHeadDim, d.head_dim ? d.head_dim : spec.hidden / spec.heads);
  spec.vocab = n.integer("vocab_size", 1, kMaxVocab, or_required(d.vocab));
  spec.context = n.integer("max_position_embeddings", kMinContext, kMaxContext, or_required(d.context));
  spec.norm_eps = n.real("rms_norm_eps", kMinEpsilon, kMaxEpsilon, d.norm_eps);
  if (!d.partial_rotary && n.real("partial_rotary_factor", 0, 1, 1.f) != 1) {
    n.refuse("partial_rotary_factor", "heads that rotate in part are not supported");
  }
  spec.tied_head = n.flag("tie_word_embeddings", d.tied_head);
  if (const std::string activation = n.text(d.activation_key, d.activation); activation != d.activation) {
    n.refuse(d.activation_key,
             fmt::format("{} is not supported here ({} is)", shown(activation), d.activation));
  }
}

RopeSpec read_config_rope(Numbers& n, const std::string& section, const std::string& base_key,
                          const std::string& scaling_section, float default_base) {
  const bool newer = n.section(section);
  RopeSpec rope;
  rope.base = base_key.empty() ? default_base : n.real(base_key, 1, 1e12, default_base);
  if (newer) rope.base = n.real(section + ".rope_theta", 1, 1e12, rope.base);
  if (newer) read_scaling(n, section, rope);
  if (scaling_section.empty() || !n.section(scaling_section)) return rope;
  RopeSpec older = rope;
  older.scaling = RopeSpec::Scaling::none, older.factor = 1;
  read_scaling(n, scaling_section, older);
  if (newer && (older.scaling != rope.scaling || older.factor != rope.factor))
    n.refuse(scaling_section, fmt::format("contradicts {}; remove one of the two", shown(section)));
  return older;
}

bool read_layer_types(Numbers& n, ModelSpec& spec) {
  const std::vector<std::string_view> types = n.texts("layer_types");
  if (types.empty()) return false;
  spec.windowed.clear();
  for (std::string_view type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      n.refuse("layer_types",
               fmt::format("{} is not supported (full_attention and sliding_attention are)", shown(type)));
    }
    spec.windowed.push_back(type == "sliding_attention");
  }
  return true;
}

void set_window_pattern(ModelSpec& spec, int pattern) {
  spec.windowed.clear();
  for (int layer = 0; layer < spec.layers; layer++) spec.windowed.push_back((layer + 1) % pattern != 0);
}

void refuse_flag(Numbers& n, std::string_view key) {
  if (n.flag(key, false)) n.refuse(key, "is not supported yet; only false is");
}

}  // namespace sluice
