#include "model/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/slots.h"

namespace sluice {
namespace {

std::string describe(const RopeSpec& r) {
  std::string text = fmt::format("base {:g}", r.base);
  if (r.rotary) text += fmt::format(", {} columns rotated", r.rotary);
  if (r.scaling == RopeSpec::Scaling::linear) text += fmt::format(", linear scaling by {:g}", r.factor);
  if (r.scaling == RopeSpec::Scaling::llama3) {
    text += fmt::format(", llama3 scaling by {:g} from {} tokens", r.factor, r.original_context);
  }
  return text;
}

std::string describe_attention(const ModelSpec& s) {
  if (s.window == 0) return "full";
  const auto windowed = std::count_if(s.windowed.begin(), s.windowed.end(), [](uint8_t w) { return w != 0; });
  if (s.windowed.empty()) return fmt::format("window of {} tokens", s.window);
  return fmt::format("window of {} tokens in {} of {} layers", s.window, windowed, s.layers);
}

std::vector<std::pair<std::string, std::string>> numbers_of(const ModelSpec& s) {
  const auto text = [](int n) { return std::to_string(n); };
  std::vector<std::pair<std::string, std::string>> out = {{"layers", text(s.layers)},
                                                          {"hidden width", text(s.hidden)},
                                                          {"heads", text(s.heads)},
                                                          {"kv heads", text(s.kv_heads)},
                                                          {"head width", text(s.head_dim)},
                                                          {"feed-forward width", text(s.ffn)},
                                                          {"vocabulary", text(s.vocab)},
                                                          {"context", fmt::format("{} tokens", s.context)},
                                                          {"attention", describe_attention(s)},
                                                          {"rope", describe(s.rope)}};
  if (s.has_local_rope) out.emplace_back("rope of windowed layers", describe(s.local_rope));
  out.emplace_back("activation", s.activation == Activation::silu ? "silu" : "gelu (tanh)");
  out.emplace_back("head", s.tied_head ? "tied to the embedding" : "its own");
  std::string extras;
  for (const auto& [present, name] :
       {std::pair(s.qkv_bias, "qkv bias"), std::pair(s.qk_norm, "q/k norm"),
        std::pair(s.post_norms, "post norms"), std::pair(s.embedding_scale != 1, "scaled embedding"),
        std::pair(s.attention_softcap > 0, "attention soft cap"),
        std::pair(s.final_softcap > 0, "logit soft cap")}) {
    if (present) extras += (extras.empty() ? "" : ", ") + std::string(name);
  }
  if (!extras.empty()) out.emplace_back("extras", extras);
  return out;
}

}  // namespace

std::string describe(const WeightFormat& f) {
  std::string text = weight_element_name(f.element);
  if (f.group) text += fmt::format(", groups of {}", f.group);
  if (f.has_min) text += ", with minimum";
  return text;
}

ModelSummary summarize(const Checkpoint& checkpoint) {
  const ModelSpec& spec = checkpoint.spec();
  ModelSummary out;
  out.path = checkpoint.path();
  out.format = checkpoint.format();
  out.architecture = spec.architecture;
  out.name = spec.name;
  for (const Slot& slot : slots_of(spec)) out.parameters += uint64_t(slot.rows) * uint64_t(slot.cols);
  out.numbers = numbers_of(spec);
  out.tensors = checkpoint.tensors();
  std::map<std::string, uint64_t> by_type;
  for (const TensorInfo& t : out.tensors) {
    uint64_t count = 1;
    for (int64_t d : t.shape) count *= uint64_t(d);
    by_type[t.type] += count;
    out.tensor_bytes += t.bytes;
    out.lossy |= t.lossy;
  }
  const auto most =
      std::max_element(by_type.begin(), by_type.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (most != by_type.end()) out.quantization = most->first;
  return out;
}

}  // namespace sluice
