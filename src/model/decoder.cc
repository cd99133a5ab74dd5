#include "model/decoder.h"

#include <algorithm>
#include <array>

namespace sluice {

Decoder::Decoder(const ModelSpec& spec, const LayerGroups& groups, const Weights& weights, Backend& backend,
                 int max_tokens, int max_logit_rows)
    : spec_(spec),
      groups_(groups),
      weights_(weights),
      backend_(backend),
      max_tokens_(max_tokens),
      max_logit_rows_(max_logit_rows) {
  struct Wish {
    Tensor* tensor;
    int64_t rows, cols;
    DType dtype;
  };
  const DType a = backend.activation_dtype();
  const int64_t t = max_tokens, q = int64_t(spec.heads) * spec.head_dim;
  // Rows of the feed-forward: with experts, a row of the step is as many.
  const int64_t k = spec.experts_per_token, rows = spec.experts > 0 ? t * k : t;
  const std::array wishes = {Wish{&hidden_, t, spec.hidden, DType::f32},
                             Wish{&normed_, t, spec.hidden, a},
                             Wish{&qkv_, t, spec.qkv_width(), a},
                             Wish{&attended_, t, q, a},
                             Wish{&gate_up_, rows, 2 * int64_t(spec.ffn), a},
                             Wish{&gated_, rows, spec.ffn, a},
                             Wish{&router_, spec.experts > 0 ? t : 0, spec.experts, DType::f32},
                             Wish{&gathered_, spec.experts > 0 ? rows : 0, spec.hidden, a},
                             Wish{&routing_, spec.experts > 0 ? t : 0, 4 * k, DType::i32},
                             Wish{&picked_, t, q, a},
                             Wish{&picked_hidden_, t, spec.hidden, DType::f32},
                             Wish{&logits_, max_logit_rows, spec.vocab, DType::f32}};
  constexpr size_t kAlign = 256;
  const auto bytes = [](const Wish& w) {
    const int64_t all = (w.rows + kRowsLeftToBackend - 1) / kRowsLeftToBackend * kRowsLeftToBackend;
    return (size_t(all) * size_t(w.cols) * dtype_size(w.dtype) + kAlign - 1) / kAlign * kAlign;
  };
  for (const Wish& w : wishes) wanted_bytes_ += bytes(w);
  arena_ = backend.alloc(wanted_bytes_);
  auto* at = arena_.as<std::byte>();
  for (const Wish& w : wishes) {
    *w.tensor = {at, w.dtype, w.rows, w.cols, w.cols};
    at += bytes(w);
  }
}

void Decoder::forward(const BatchInput& batch, const KvPool& kv) {
  CHECK(batch.tokens > 0 && batch.tokens <= max_tokens_ && batch.logit_rows <= max_tokens_);
  const ModelSpec& s = spec_;
  const int64_t t = batch.tokens, q_width = int64_t(s.heads) * s.head_dim;
  Tensor hidden = hidden_.first_rows(t), normed = normed_.first_rows(t), attended = attended_.first_rows(t);
  const Tensor qkv = qkv_.first_rows(t);

  backend_.begin_step(batch, kv.geometry, s.heads);
  backend_.embed({weights_.embedding, batch, s.embedding_scale, hidden});
  tell(-1, "embed", hidden);
  backend_.rms_norm({hidden, weights_.layers[0].attn_norm.as<float>(), s.norm_eps, normed});

  for (int layer = 0; layer < s.layers; layer++) {
    const LayerWeights& w = weights_.layers[size_t(layer)];
    const bool windowed = s.layer_windowed(layer), local = windowed && s.has_local_rope,
               last = layer + 1 == s.layers;
    const RopeSpec& rope = local ? s.local_rope : s.rope;
    const KvLayer place{kv.data, kv.block_bytes, groups_.index_in[size_t(layer)],
                        groups_.group_of[size_t(layer)]};

    project(normed, w.qkv, w.qkv_bias.as<float>(), qkv);
    tell(layer, "qkv", qkv);
    backend_.rope_store_kv({.qkv = qkv,
                            .batch = batch,
                            .geometry = kv.geometry,
                            .kv = place,
                            .heads = s.heads,
                            .q_norm = w.q_norm.as<float>(),
                            .k_norm = w.k_norm.as<float>(),
                            .norm_eps = s.norm_eps,
                            .rotary = rope.rotary ? rope.rotary : s.head_dim,
                            .inv_freq = (local ? weights_.local_inv_freq : weights_.inv_freq).as<float>(),
                            .rope_magnitude = 1});
    if (last && batch.logit_rows == 0) break;  // the cache is filled, and nobody asks for more
    backend_.attention({.q = qkv.columns(0, q_width),
                        .batch = batch,
                        .geometry = kv.geometry,
                        .kv = place,
                        .heads = s.heads,
                        .scale = s.attention_scale,
                        .window = s.layer_window(layer),
                        .softcap = s.attention_softcap,
                        .out = attended});
    tell(layer, "attention", attended);
    if (last && batch.logit_rows < t) pick_rows(batch, attended, hidden, normed);

    backend_.linear({attended, w.o, nullptr, normed});
    tell(layer, "o", normed);
    add_norm(hidden, normed, w.post_attn_norm, w.ffn_norm);
    feed_forward(layer, normed);
    const Buffer& next_norm = last ? weights_.final_norm : weights_.layers[size_t(layer) + 1].attn_norm;
    add_norm(hidden, normed, w.post_ffn_norm, next_norm);
    tell(layer, "norm", normed);
  }
}

void Decoder::project(const Tensor& x, const SideBySide& weights, const float* bias, const Tensor& out) {
  int64_t at = 0;
  for (const Weight& w : weights) {
    backend_.linear({x, w, bias ? bias + at : nullptr, out.columns(at, w.rows)});
    at += w.rows;
  }
}

// In place. Gemma's addition has a norm of its own, and is one op with it either way.
void Decoder::add_norm(const Tensor& hidden, const Tensor& x, const Buffer& post_norm, const Buffer& norm) {
  const auto* post = post_norm.as<float>();
  const auto* weight = norm.as<float>();
  if (weights_.fused || post) return backend_.add_rms_norm({hidden, x, post, weight, spec_.norm_eps, x});
  backend_.add_rms_norm({hidden, x, nullptr, nullptr, spec_.norm_eps, x});
  backend_.rms_norm({hidden, weight, spec_.norm_eps, x});
}

// In place.
void Decoder::feed_forward(int layer, const Tensor& normed) {
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t rows = normed.rows;
  if (spec_.experts == 0) {
    const Tensor gate_up = gate_up_.first_rows(rows), gated = gated_.first_rows(rows);
    project(normed, w.gate_up, nullptr, gate_up);
    tell(layer, "gate_up", gate_up);
    backend_.act_mul({gate_up, spec_.activation, gated});
    tell(layer, "act", gated);
    backend_.linear({gated, w.down, nullptr, normed});
    return tell(layer, "down", normed);
  }
  const Tensor router = router_.first_rows(rows);
  backend_.linear({normed, w.router, nullptr, router});
  backend_.experts({.x = normed,
                    .router = router,
                    .experts = w.experts,
                    .per_token = spec_.experts_per_token,
                    .normalised = spec_.experts_normalised,
                    .activation = spec_.activation,
                    .gathered = gathered_,
                    .gate_up = gate_up_,
                    .gated = gated_,
                    .routing = routing_,
                    .out = normed});
  tell(layer, "experts", normed);
}

// After the last attention only rows whose logits are wanted matter: the rest of the layer runs on these alone.
void Decoder::pick_rows(const BatchInput& batch, Tensor& attended, Tensor& hidden, Tensor& normed) {
  const int64_t rows = batch.logit_rows;
  backend_.gather_rows(attended, batch.logit_index, picked_.first_rows(rows));
  backend_.gather_rows(hidden, batch.logit_index, picked_hidden_.first_rows(rows));
  attended = picked_.first_rows(rows);
  hidden = picked_hidden_.first_rows(rows);
  normed = normed.first_rows(rows);
}

Tensor Decoder::hidden(const BatchInput& batch, int first, int count) const {
  CHECK(first >= 0 && count > 0 && first + count <= batch.logit_rows);
  const Tensor all = normed_.first_rows(first + count);  // the logit rows alone, in their order
  return {all.row<std::byte>(0) + size_t(first) * size_t(all.stride) * dtype_size(all.dtype), all.dtype, count,
          all.cols, all.stride};
}

Tensor Decoder::logits(const BatchInput& batch, int first, int count) {
  CHECK(count <= max_logit_rows_);
  const Tensor rows = hidden(batch, first, count);
  const Tensor out = logits_.first_rows(count);
  backend_.linear({rows, weights_.output(), nullptr, out});
  return out;
}

size_t Decoder::activation_bytes() const { return arena_.bytes(); }

}  // namespace sluice
