#include "model/weights.h"

#include <fmt/format.h>

#include <initializer_list>

#include "model/formats/rows.h"
#include "model/formats/shown.h"
#include "model/slots.h"

namespace sluice {
namespace {

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend, const LoadProgress& progress,
         bool fused)
      : checkpoint_(checkpoint), spec_(spec), backend_(backend), progress_(progress), fused_(fused) {
    for (const Slot& slot : slots_of(spec)) total_ += size_t(slot.rows) * size_t(slot.cols);
  }

  Result<Weights> run() {
    Weights w;
    w.experts_per_token = spec_.experts_per_token;
    w.fused = fused_;
    w.embedding = matrix({"token_embd.weight"});
    for (int layer = 0; layer < spec_.layers && ok(); layer++) w.layers.push_back(layer_weights(layer));
    w.final_norm = vector({"output_norm.weight"});
    if (!spec_.tied_head) w.head = matrix({"output.weight"});
    w.inv_freq = frequencies(spec_.rope);
    if (spec_.has_local_rope)
      w.local_inv_freq = upload(spec_.local_rope.inverse_frequencies(spec_.head_dim), "local rotation");
    if (!ok()) return *error_;
    return w;
  }

 private:
  using Names = std::initializer_list<const char*>;
  bool ok() const { return !error_; }

  LayerWeights layer_weights(int layer) {
    layer_ = layer;
    LayerWeights w;
    w.attn_norm = vector({"attn_norm.weight"});
    w.qkv = spec_.fused_projections ? side_by_side({"attn_qkv.weight"})
                                    : side_by_side({"attn_q.weight", "attn_k.weight", "attn_v.weight"});
    if (spec_.qkv_bias) w.qkv_bias = vector({"attn_q.bias", "attn_k.bias", "attn_v.bias"});
    if (spec_.qk_norm) w.q_norm = vector({"attn_q_norm.weight"});
    if (spec_.qk_norm) w.k_norm = vector({"attn_k_norm.weight"});
    w.o = matrix({"attn_output.weight"});
    if (spec_.post_norms) w.post_attn_norm = vector({"post_attention_norm.weight"});
    w.ffn_norm = vector({"ffn_norm.weight"});
    if (spec_.experts > 0) {
      w.router = matrix({"ffn_gate_inp.weight"});
      for (int e = 0; e < spec_.experts && ok(); e++) w.experts.push_back(expert_weights(e));
    } else {
      w.gate_up = spec_.fused_projections ? side_by_side({"ffn_up.weight"})
                                          : side_by_side({"ffn_gate.weight", "ffn_up.weight"});
      w.down = matrix({"ffn_down.weight"});
    }
    if (spec_.post_norms) w.post_ffn_norm = vector({"post_ffw_norm.weight"});
    layer_ = -1;
    return w;
  }

  ExpertWeights expert_weights(int expert) {
    const auto name = [&](const char* matrix) { return fmt::format("{}.{}.weight", matrix, expert); };
    const std::string gate = name("ffn_gate"), up = name("ffn_up"), down = name("ffn_down");
    ExpertWeights w;
    w.gate_up = matrix({gate.c_str(), up.c_str()}, true);
    if (ok()) w.down = matrix({down.c_str()}, true);
    return w;
  }

  std::string slot(const char* name) const {
    return layer_ < 0 ? name : fmt::format("blk.{}.{}", layer_, name);
  }

  std::unique_ptr<RowSource> rows(const std::string& slot) {
    std::unique_ptr<RowSource> source = checkpoint_.rows(slot);
    if (!source && ok()) {
      error_ = Error{ErrorCode::kCorrupt, fmt::format("{}: tensor {} is missing or cannot be read",
                                                      checkpoint_.path(), shown(slot))};
    }
    return source;
  }

  SideBySide side_by_side(Names names) {
    SideBySide out;
    if (fused_) {
      out.push_back(matrix(names));
    } else {
      for (const char* name : names)
        if (ok()) out.push_back(matrix({name}));
    }
    return out;
  }

  // The sources' rows one after the other, as one packed weight.
  Weight matrix(Names names, bool of_expert = false) {
    std::vector<std::unique_ptr<RowSource>> sources;
    std::vector<std::vector<int32_t>> orders;
    for (const char* name : names) {
      sources.push_back(rows(slot(name)));
      orders.push_back(checkpoint_.row_order(slot(name)));
    }
    if (!ok()) return {};
    std::vector<Backend::PackSource> pack;
    for (size_t i = 0; i < sources.size(); i++) pack.push_back({sources[i].get(), orders[i], of_expert});
    Result<Weight> packed = backend_.pack(pack);
    if (!packed) {
      error_ = Error{packed.error().code, fmt::format("{}: tensor {}: {}", checkpoint_.path(),
                                                      shown(slot(*names.begin())), packed.error().message)};
      return {};
    }
    for (size_t i = 0; i < sources.size(); i++) {
      if (const Status state = sources[i]->state(); !state) {
        error_ = Error{state.error().code, fmt::format("{}: tensor {}: {}", checkpoint_.path(),
                                                       shown(slot(names.begin()[i])), state.error().message)};
        return {};
      }
      checkpoint_.release(slot(names.begin()[i]));
    }
    for (const auto& source : sources) advance(size_t(source->rows()) * size_t(source->cols()));
    return std::move(*packed);
  }

  Buffer vector(Names names) {
    std::vector<float> values;
    DecodedRow scratch;
    for (const char* name : names) {
      const std::unique_ptr<RowSource> source = rows(slot(name));
      if (!ok()) return {};
      std::vector<float> stored(size_t(source->cols()));
      decode_f32(*source, 0, scratch, stored.data());
      const std::vector<int32_t> order = checkpoint_.row_order(slot(name));
      for (size_t i = 0; i < stored.size(); i++)
        values.push_back(order.empty() ? stored[i] : stored[size_t(order[i])]);
    }
    advance(values.size());
    return upload(values, slot(*names.begin()));
  }

  // Llama 3's scaling comes as divisors in GGUF files.
  Buffer frequencies(const RopeSpec& rope) {
    std::vector<float> values = rope.inverse_frequencies(spec_.head_dim);
    if (const std::unique_ptr<RowSource> divisors = checkpoint_.rows("rope_freqs.weight")) {
      CHECK(divisors->cols() == int64_t(values.size()));
      std::vector<float> by(values.size());
      DecodedRow scratch;
      decode_f32(*divisors, 0, scratch, by.data());
      for (size_t i = 0; i < values.size(); i++) values[i] /= by[i];
    }
    return upload(values, "rotation");
  }

  Buffer upload(const std::vector<float>& values, const std::string& slot) {
    Buffer buffer = backend_.alloc(values.size() * sizeof(float));
    if (!buffer.data()) {
      if (ok())
        error_ = Error{ErrorCode::kResourceExhausted,
                       fmt::format("{}: {}: the device is full; use a smaller model or another device",
                                   checkpoint_.path(), shown(slot))};
      return {};
    }
    backend_.copy_in(buffer.data(), values.data(), values.size() * sizeof(float));
    return buffer;
  }

  void advance(size_t values) {
    done_ += values;
    if (progress_) progress_(done_, total_);
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  Backend& backend_;
  const LoadProgress& progress_;
  const bool fused_;
  int layer_ = -1;
  size_t done_ = 0, total_ = 0;
  std::optional<Error> error_;
};

}  // namespace

size_t Weights::bytes() const {
  size_t n = embedding.bytes() + head.bytes() + final_norm.bytes() + inv_freq.bytes() + local_inv_freq.bytes();
  for (const LayerWeights& l : layers) {
    for (const Weight* w : {&l.o, &l.down, &l.router}) n += w->bytes();
    for (const SideBySide* s : {&l.qkv, &l.gate_up})
      for (const Weight& w : *s) n += w.bytes();
    for (const ExpertWeights& e : l.experts) n += e.gate_up.bytes() + e.down.bytes();
    for (const Buffer* b :
         {&l.attn_norm, &l.qkv_bias, &l.q_norm, &l.k_norm, &l.post_attn_norm, &l.ffn_norm, &l.post_ffn_norm}) {
      n += b->bytes();
    }
  }
  return n;
}

size_t Weights::bytes_per_token() const {
  size_t n = head.rows ? bytes() - embedding.bytes() : bytes();
  for (const LayerWeights& l : layers) {
    for (size_t e = size_t(experts_per_token); e < l.experts.size(); e++)
      n -= l.experts[e].gate_up.bytes() + l.experts[e].down.bytes();
  }
  return n;
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend,
                             const LoadProgress& progress, bool fused) {
  return Loader(checkpoint, spec, backend, progress, fused).run();
}

}  // namespace sluice
