#include "model/families/family.h"

#include <fmt/format.h>

#include <cmath>

#include "model/slots.h"

namespace sluice {

std::span<const Family* const> families() {
  static constexpr const Family* kAll[] = {&kGemma2, &kGemma3, &kLlama, &kMistral, &kMixtral,
                                           &kPhi3,   &kQwen2,  &kQwen3, &kQwen3Moe};
  return kAll;
}

const Family* find_family(std::string_view name) {
  for (const Family* f : families()) {
    if (f->name == name) return f;
  }
  return nullptr;
}

std::string hugging_face_name(const Family& family, std::string_view slot, std::string_view prefix) {
  if (slot == "token_embd.weight") return std::string(prefix) + "embed_tokens.weight";
  if (slot == "output_norm.weight") return std::string(prefix) + "norm.weight";
  if (slot == "output.weight")
    return prefix == "language_model.model." ? "language_model.lm_head.weight" : "lm_head.weight";
  const SlotPlace place = slot_place(slot);
  const ExpertPlace expert = expert_place(place.rest);
  const std::string rest =
      expert.expert < 0 ? std::string(place.rest) : fmt::format("{}.*.weight", expert.matrix);
  for (const SlotName& n : family.layer_names) {
    if (place.layer < 0 || n.slot != rest) continue;
    std::string name(n.hugging_face);
    if (const size_t star = name.find('*'); star != std::string::npos)
      name.replace(star, 1, std::to_string(expert.expert));
    return fmt::format("{}layers.{}.{}", prefix, place.layer, name);
  }
  return {};
}

std::string supported_families() {
  std::string out;
  for (const Family* f : families()) out += (out.empty() ? "" : ", ") + std::string(f->name);
  return out;
}

Status check_spec(const ModelSpec& s, const std::string& path) {
  auto fail = [&](const std::string& what) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: {}", path, what)};
  };
  if (s.layers < 1 || s.hidden < 1 || s.heads < 1 || s.kv_heads < 1 || s.head_dim < 1 || s.ffn < 1 ||
      s.vocab < 1 || s.context < 1) {
    return fail("a size of the model is zero");
  }
  if (s.heads % s.kv_heads != 0)
    return fail(fmt::format("{} heads cannot share {} key/value heads evenly", s.heads, s.kv_heads));
  if (s.experts > 0 && (s.experts_per_token < 1 || s.experts_per_token > s.experts))
    return fail(fmt::format("a token cannot have {} of {} experts", s.experts_per_token, s.experts));
  const auto rope = [&](const RopeSpec& r) {
    return r.rotary >= 0 && r.rotary <= s.head_dim && r.rotary % 2 == 0;
  };
  if (s.head_dim % 2 != 0 || !rope(s.rope) || !rope(s.local_rope)) {
    return fail(fmt::format(
        "heads of {} columns with {} rotated: an even number, no more than the head has, is expected",
        s.head_dim, s.rope.rotary));
  }
  for (const RopeSpec* r : {&s.rope, &s.local_rope}) {
    if (r->scaling == RopeSpec::Scaling::llama3 && r->low_freq_factor >= r->high_freq_factor) {
      return fail(fmt::format("rope scaling: low_freq_factor {} must be below high_freq_factor {}",
                              r->low_freq_factor, r->high_freq_factor));
    }
  }
  if (!s.windowed.empty() && s.windowed.size() != size_t(s.layers)) {
    return fail(fmt::format("{} layer types for {} layers", s.windowed.size(), s.layers));
  }
  if (!(s.attention_scale > 0) || !std::isfinite(s.attention_scale))
    return fail("the attention scale is not positive");
  return {};
}

namespace {

Result<ModelSpec> finish(const Family& family, Numbers& n, ModelSpec spec, const std::string& path) {
  if (!n.ok()) return n.error();
  spec.architecture = family.name;
  if (spec.head_dim > 0 && spec.attention_scale == 0)
    spec.attention_scale = 1 / std::sqrt(float(spec.head_dim));
  if (Status s = check_spec(spec, path); !s) return s.error();
  return spec;
}

}  // namespace

Result<ModelSpec> read_gguf_spec(const Family& family, const GgufFile& file) {
  ModelSpec spec;
  spec.name = file.string("general.name").value_or("");
  Numbers n(file, file.path(), std::string(family.gguf_architecture) + ".");
  read_gguf_sizes(file, n, spec);
  family.read_gguf(file, n, spec);
  if (spec.experts == 0 && n.integer("expert_count", 0, 1 << 20, 0) > 0)
    n.refuse("expert_count", "mixtures of experts are not supported in this family");
  return finish(family, n, std::move(spec), file.path());
}

Result<ModelSpec> read_config_spec(const Family& family, const KeyValues& config, const std::string& path,
                                   const std::string& prefix) {
  ModelSpec spec;
  Numbers n(config, path, prefix);
  family.read_config(n, spec);
  return finish(family, n, std::move(spec), path);
}

}  // namespace sluice
