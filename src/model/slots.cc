#include "model/slots.h"

#include <charconv>

namespace sluice {

std::vector<Slot> slots_of(const ModelSpec& s) {
  const int64_t c = s.hidden, q = int64_t(s.heads) * s.head_dim, kv = int64_t(s.kv_heads) * s.head_dim,
                f = s.ffn;
  std::vector<Slot> out;
  out.push_back({"token_embd.weight", s.vocab, c});
  for (int layer = 0; layer < s.layers; layer++) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    const auto vector = [&](const char* name, int64_t size) { out.push_back({p + name, 1, size, false}); };
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols) {
      out.push_back({p + name, rows, cols});
    };
    vector("attn_norm.weight", c);
    if (s.fused_projections) {
      matrix("attn_qkv.weight", q + 2 * kv, c);
    } else {
      matrix("attn_q.weight", q, c), matrix("attn_k.weight", kv, c), matrix("attn_v.weight", kv, c);
    }
    if (s.qkv_bias) vector("attn_q.bias", q), vector("attn_k.bias", kv), vector("attn_v.bias", kv);
    if (s.qk_norm) vector("attn_q_norm.weight", s.head_dim), vector("attn_k_norm.weight", s.head_dim);
    matrix("attn_output.weight", c, q);
    if (s.post_norms) vector("post_attention_norm.weight", c);
    vector("ffn_norm.weight", c);
    if (s.experts > 0) matrix("ffn_gate_inp.weight", s.experts, c);
    for (int e = 0; e < s.experts; e++) {
      const std::string expert = "." + std::to_string(e) + ".weight";
      matrix(("ffn_gate" + expert).c_str(), f, c), matrix(("ffn_up" + expert).c_str(), f, c);
      matrix(("ffn_down" + expert).c_str(), c, f);
    }
    if (s.experts == 0) {
      if (!s.fused_projections) matrix("ffn_gate.weight", f, c);
      matrix("ffn_up.weight", s.fused_projections ? 2 * f : f, c);  // fused: gate, then up
      matrix("ffn_down.weight", c, f);
    }
    if (s.post_norms) vector("post_ffw_norm.weight", c);
  }
  out.push_back({"output_norm.weight", 1, c, false});
  if (!s.tied_head) out.push_back({"output.weight", s.vocab, c});
  return out;
}

SlotPlace slot_place(std::string_view slot) {
  constexpr std::string_view kLayer = "blk.";
  if (!slot.starts_with(kLayer)) return {-1, slot};
  const std::string_view after = slot.substr(kLayer.size());
  SlotPlace place;
  const auto [end, error] = std::from_chars(after.data(), after.data() + after.size(), place.layer);
  if (error != std::errc() || end == after.data() + after.size() || *end != '.' || place.layer < 0)
    return {-1, slot};
  place.rest = after.substr(size_t(end - after.data()) + 1);
  return place;
}

ExpertPlace expert_place(std::string_view rest) {
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return {rest, -1};
  ExpertPlace place{rest.substr(0, dot), -1};
  const auto [end, error] = std::from_chars(rest.data() + dot + 1, rest.data() + rest.size(), place.expert);
  const bool whole = error == std::errc() && std::string_view(end, rest.data() + rest.size()) == ".weight";
  return whole && place.expert >= 0 ? place : ExpertPlace{rest, -1};
}

}  // namespace sluice
