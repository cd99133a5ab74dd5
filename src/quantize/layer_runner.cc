#include "quantize/layer_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/formats/rows.h"
#include "model/slots.h"
#include "quantize/matrix_rows.h"
#include "tensor/half.h"

namespace sluice::quantize {
namespace {

constexpr int kBlockTokens = 64;

// A layer's numbers as if the model had no other; nothing is embedded and no logits are asked for, so a few
// rows of embedding serve (as many as a card's products like).
constexpr int kVocab = 16;

ModelSpec spec_of_layer(const ModelSpec& model, int layer) {
  ModelSpec spec = model;
  spec.layers = 1;
  spec.vocab = kVocab;
  spec.tied_head = true;
  if (!model.windowed.empty()) spec.windowed = {model.windowed[size_t(layer)]};
  return spec;
}

// A layer of a checkpoint as a checkpoint of one layer.
class LayerView final : public Checkpoint {
 public:
  LayerView(const Checkpoint& whole, const ModelSpec& spec, int layer, const Replacements& replaced)
      : whole_(whole), spec_(spec), layer_(layer), replaced_(replaced), nothing_(kVocab, spec.hidden) {}
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

LayerRunner::LayerRunner(const Checkpoint& checkpoint, BackendMaker make_backend, int max_tokens)
    : checkpoint_(checkpoint), make_backend_(std::move(make_backend)), max_tokens_(max_tokens) {}

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
  weights_ = {}, memory_ = {}, arrays_ = {};
  recording_.reset();
  backend_.reset();  // before another takes the device
  Result<std::unique_ptr<Backend>> made = make_backend_();
  if (!made) return std::move(made).error();
  backend_ = std::move(*made);
  recording_.emplace(*backend_);
  spec_ = spec_of_layer(checkpoint_.spec(), layer);
  groups_ = layer_groups(spec_);
  if (Status runs = backend_->check({.hidden = spec_.hidden,
                                     .ffn = spec_.ffn,
                                     .vocab = spec_.vocab,
                                     .heads = spec_.heads,
                                     .kv_heads = spec_.kv_heads,
                                     .head_dim = spec_.head_dim,
                                     .experts = spec_.experts,
                                     .block_tokens = kBlockTokens,
                                     .step_tokens = max_tokens_,
                                     .max_sequences = 1});
      !runs)
    return runs;
  Result<Weights> loaded = load_weights(LayerView(checkpoint_, spec_, layer, replaced), spec_, *recording_, {});
  if (!loaded) return std::move(loaded).error();
  weights_ = std::move(*loaded);
  return allocate();
}

Status LayerRunner::allocate() {
  Backend& backend = *backend_;
  const ModelSpec& s = spec_;
  const int blocks = (max_tokens_ + kBlockTokens - 1) / kBlockTokens;
  pool_.geometry = {kBlockTokens, groups_.layers_per_group, s.kv_heads, s.head_dim, backend.kv_dtype()};
  pool_.block_bytes = backend.kv_block_bytes(pool_.geometry);
  arrays_ = backend.alloc(sizeof(int32_t) * (size_t(max_tokens_) * 4 + 3 + size_t(blocks)));
  decoder_ = std::make_unique<Decoder>(spec_, groups_, weights_, *recording_, max_tokens_, 1);
  bool enough = arrays_.data() && decoder_->activation_bytes() > 0;
  const auto allocate_pool = [&] {
    memory_ = backend.alloc_pool(pool_.block_bytes * size_t(blocks), pool_.geometry);
    pool_.data = memory_.as<std::byte>();
    enough = enough && pool_.data;
  };
  // On a card the pool comes last; elsewhere what comes after reserve() must succeed.
  const bool card = backend.info().is_card();
  if (!card) allocate_pool();
  enough = enough && backend
                         .reserve({.max_tokens = max_tokens_,
                                   .max_sequences = 1,
                                   .max_columns = std::max({s.hidden, s.heads * s.head_dim, s.ffn}),
                                   .max_heads = s.heads,
                                   .head_dim = s.head_dim,
                                   .max_context = blocks * kBlockTokens,
                                   .vocab = s.vocab,
                                   .max_logit_rows = 1,
                                   .kv = pool_.geometry})
                         .ok();
  if (card && enough) allocate_pool();
  if (enough) return {};
  return Error{
      ErrorCode::kResourceExhausted,
      fmt::format("not enough memory for a sample of {} tokens: choose fewer (--sample-tokens)", max_tokens_)};
}

// Activations of a card are bf16 in its own memory.
Tensor LayerRunner::on_host(const Tensor& x, Matrix& copy) {
  if (x.dtype == DType::f32) return x;
  CHECK(x.dtype == DType::bf16 && x.stride == x.cols);
  std::vector<uint16_t> raw(size_t(x.rows * x.cols));
  backend_->finish_step();
  backend_->copy_out(raw.data(), x.data, raw.size() * sizeof(uint16_t));
  copy = Matrix(x.rows, x.cols);
  std::transform(raw.begin(), raw.end(), copy.values.begin(), bf16_to_f32);
  return {copy.values.data(), DType::f32, x.rows, x.cols, x.cols};
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
  backend_->copy_in(arrays_.data(), staged.data(), staged.size() * sizeof(int32_t));

  Tensor hidden;
  const size_t bytes = residual.values.size() * sizeof(float);
  recording_->on_embed = [&](const Tensor& out) {
    hidden = out;
    backend_->copy_in(out.data, residual.values.data(), bytes);
  };
  const LayerWeights& w = weights_.layers[0];
  recording_->on_linear = [&](const LinearArgs& a) {
    if (!seen) return;
    Matrix copy;
    if (&a.w == &w.qkv[0]) seen(Input::qkv, on_host(a.x, copy));
    if (&a.w == &w.o) seen(Input::attention_output, on_host(a.x, copy));
    if (!w.gate_up.empty() && &a.w == &w.gate_up[0]) seen(Input::gate_up, on_host(a.x, copy));
    if (&a.w == &w.down) seen(Input::down, on_host(a.x, copy));
  };
  decoder_->forward(batch, pool_);
  backend_->finish_step();
  backend_->copy_out(residual.values.data(), hidden.data, bytes);  // the layer has added to it
}

}  // namespace sluice::quantize
