#include "quantize/layer_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/formats/rows.h"
#include "model/slots.h"
#include "quantize/matrix_rows.h"

namespace sluice::quantize {
namespace {

constexpr int kBlockTokens = 64;

// A layer's numbers as if the model had no other; nothing is embedded and no logits are asked for, so one row
// of embedding serves.
ModelSpec spec_of_layer(const ModelSpec& model, int layer) {
  ModelSpec spec = model;
  spec.layers = 1;
  spec.vocab = 1;
  spec.tied_head = true;
  if (!model.windowed.empty()) spec.windowed = {model.windowed[size_t(layer)]};
  return spec;
}

// A layer of a checkpoint as a checkpoint of one layer.
class LayerView final : public Checkpoint {
 public:
  LayerView(const Checkpoint& whole, const ModelSpec& spec, int layer, const Replacements& replaced)
      : whole_(whole), spec_(spec), layer_(layer), replaced_(replaced), nothing_(1, spec.hidden) {}
  const std::string& path() const override { return whole_.path(); }
  std::string format() const override { return whole_.format(); }
  const ModelSpec& spec() const override { return spec_; }
  std::vector<TensorInfo> tensors() const override { return {}; }
  std::unique_ptr<RowSource> rows(std::string_view slot) const override {
    const SlotPlace place = slot_place(slot);
    if (place.layer < 0 && slot != "rope_freqs.weight") return std::make_unique<MatrixRows>(nothing_);
    if (const auto own = replaced_.find(place.rest); own != replaced_.end())
      return std::make_unique<MatrixRows>(own->second);
    return whole_.rows(name(slot));
  }
  // What replaces a tensor is in order.
  std::vector<int32_t> row_order(std::string_view slot) const override {
    if (replaced_.contains(slot_place(slot).rest)) return {};
    return whole_.row_order(name(slot));
  }
  void release(std::string_view slot) const override { whole_.release(name(slot)); }
  const GgufFile* gguf() const override { return whole_.gguf(); }
  Result<std::string> side_file(std::string_view name) const override { return whole_.side_file(name); }

 private:
  std::string name(std::string_view slot) const {
    const SlotPlace place = slot_place(slot);
    return place.layer < 0 ? std::string(slot) : fmt::format("blk.{}.{}", layer_, place.rest);
  }
  const Checkpoint& whole_;
  const ModelSpec& spec_;
  const int layer_;
  const Replacements& replaced_;
  const Matrix nothing_;
};

}  // namespace

LayerRunner::LayerRunner(const Checkpoint& checkpoint, Backend& backend, int max_tokens)
    : checkpoint_(checkpoint), backend_(backend), max_tokens_(max_tokens) {}

Result<std::unique_ptr<LayerRunner>> LayerRunner::make(const Checkpoint& checkpoint, Backend& backend,
                                                       int max_tokens) {
  std::unique_ptr<LayerRunner> out(new LayerRunner(checkpoint, backend, max_tokens));
  const ModelSpec& s = checkpoint.spec();
  out->spec_ = spec_of_layer(s, 0);
  out->groups_ = layer_groups(out->spec_);
  KvPool& pool = out->pool_;
  pool.geometry = {kBlockTokens, out->groups_.layers_per_group, s.kv_heads, s.head_dim, backend.kv_dtype()};
  pool.block_bytes = backend.kv_block_bytes(pool.geometry);
  const int blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  out->memory_ = backend.alloc_pool(pool.block_bytes * size_t(blocks), pool.geometry);
  out->arrays_ = backend.alloc(sizeof(int32_t) * (size_t(max_tokens) * 4 + 3 + size_t(blocks)));
  pool.data = out->memory_.as<std::byte>();
  if (!pool.data || !out->arrays_.data())
    return Error{ErrorCode::kResourceExhausted, "not enough memory for a sample's keys and values"};
  if (Status reserved =
          backend.reserve({.max_tokens = max_tokens,
                           .max_sequences = 1,
                           .max_columns = std::max({s.hidden, s.heads * s.head_dim, s.ffn, max_tokens}),
                           .max_heads = s.heads,
                           .head_dim = s.head_dim,
                           .max_context = blocks * kBlockTokens,
                           .vocab = 1,
                           .max_logit_rows = 1,
                           .kv = pool.geometry});
      !reserved)
    return std::move(reserved).error();
  return out;
}

Matrix LayerRunner::embed(std::span<const int32_t> ids) const {
  const std::unique_ptr<RowSource> table = checkpoint_.rows("token_embd.weight");
  CHECK(table != nullptr);
  Matrix out(int64_t(ids.size()), table->cols());
  DecodedRow scratch;
  for (size_t i = 0; i < ids.size(); i++) {
    CHECK(ids[i] >= 0 && ids[i] < table->rows(), "token id beyond the vocabulary");
    decode_f32(*table, ids[i], scratch, out.row(int64_t(i)).data());
  }
  for (float& x : out.values) x *= checkpoint_.spec().embedding_scale;
  return out;
}

Status LayerRunner::load(int layer, const Replacements& replaced) {
  decoder_.reset();
  weights_ = {};
  spec_ = spec_of_layer(checkpoint_.spec(), layer);
  groups_ = layer_groups(spec_);
  Result<Weights> loaded = load_weights(LayerView(checkpoint_, spec_, layer, replaced), spec_, backend_, {});
  if (!loaded) return std::move(loaded).error();
  weights_ = std::move(*loaded);
  decoder_ = std::make_unique<Decoder>(spec_, groups_, weights_, backend_, max_tokens_, 1);
  if (decoder_->activation_bytes() == 0)
    return Error{ErrorCode::kResourceExhausted, "not enough memory for a sample's activations"};
  return {};
}

void LayerRunner::run(Matrix& residual, const std::function<void(Input, const Tensor&)>& seen) {
  const int n = int(residual.rows);
  CHECK(decoder_ && n > 0 && n <= max_tokens_);
  const int blocks = (max_tokens_ + kBlockTokens - 1) / kBlockTokens;
  std::vector<int32_t> staged;
  const auto put = [&](int count, auto&& value_of) {
    const int32_t* at = arrays_.as<int32_t>() + staged.size();
    for (int i = 0; i < count; i++) staged.push_back(int32_t(value_of(i)));
    return at;
  };
  BatchInput batch{.tokens = n, .sequences = 1, .logit_rows = n};
  batch.token_ids = put(n, [](int) { return 0; });
  batch.positions = put(n, [](int i) { return i; });
  batch.row_sequence = put(n, [](int) { return 0; });
  batch.row_starts = put(2, [&](int i) { return i * n; });
  batch.kv_lengths = put(1, [&](int) { return n; });
  batch.logit_index = put(n, [](int i) { return i; });
  batch.one_row_sequences = n == 1;
  batch.table_stride = blocks;
  batch.groups = int(groups_.groups.size());
  batch.tables[0] = put(blocks, [](int i) { return i; });
  CHECK(batch.groups == 1);
  backend_.copy_in(arrays_.data(), staged.data(), staged.size() * sizeof(int32_t));

  Tensor hidden;
  const size_t bytes = residual.values.size() * sizeof(float);
  backend_.on_embed = [&](const Tensor& out) {
    hidden = out;
    backend_.copy_in(out.data, residual.values.data(), bytes);
  };
  const LayerWeights& w = weights_.layers[0];
  backend_.on_linear = [&](const LinearArgs& a) {
    if (!seen) return;
    if (&a.w == &w.qkv[0]) seen(Input::qkv, a.x);
    if (&a.w == &w.o) seen(Input::attention_output, a.x);
    if (!w.gate_up.empty() && &a.w == &w.gate_up[0]) seen(Input::gate_up, a.x);
    if (&a.w == &w.down) seen(Input::down, a.x);
  };
  decoder_->forward(batch, pool_);
  backend_.finish_step();
  backend_.copy_out(residual.values.data(), hidden.data, bytes);  // the layer has added to it
}

}  // namespace sluice::quantize
