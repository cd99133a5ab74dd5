// A checkpoint in one GGUF file. Slots have GGUF's names, so a slot is a tensor.
#include <fmt/format.h>

#include <algorithm>

#include "model/checkpoint_formats.h"
#include "model/families/family.h"
#include "model/formats/gguf.h"
#include "model/formats/rows.h"
#include "model/formats/shown.h"
#include "model/slots.h"

namespace sluice {
namespace {

std::vector<int64_t> shape_of(const GgufTensor& t) {
  std::vector<int64_t> shape;
  for (int d = t.dimension_count - 1; d >= 0; d--) shape.push_back(t.dimensions[size_t(d)]);
  return shape;
}

class GgufCheckpoint final : public Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path) {
    Result<std::unique_ptr<GgufFile>> file = GgufFile::open(path);
    if (!file) return file.error();
    auto out = std::make_unique<GgufCheckpoint>();
    out->file_ = std::move(*file);
    if (Status s = out->read_numbers(); !s) return s.error();
    if (Status s = out->check_tensors(); !s) return s.error();
    return std::unique_ptr<Checkpoint>(std::move(out));
  }

  const std::string& path() const override { return file_->path(); }
  std::string format() const override { return fmt::format("GGUF v{}", file_->version()); }
  const ModelSpec& spec() const override { return spec_; }

  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (const GgufTensor& t : file_->tensors()) {
      out.push_back({std::string(t.name), t.type->name, shape_of(t), t.data.size(), t.type->canonical, false});
    }
    return out;
  }

  std::unique_ptr<RowSource> rows(std::string_view slot) const override {
    const Stored stored = find(slot);
    const GgufTensor* t = stored.tensor;
    if (!t || !t->type->readable()) return nullptr;
    if (stored.expert < 0) return make_rows(*t->type, t->data, t->rows(), t->cols());
    const size_t rows = size_t(t->rows()) / size_t(spec_.experts), bytes = rows * t->type->row_bytes(t->cols());
    return make_rows(*t->type, t->data.subspan(size_t(stored.expert) * bytes, bytes), int64_t(rows), t->cols());
  }

  // The converter of llama-like models stores q and k with element 2i next to 2i + 1 where the rotation pairs i
  // with i + rotary/2. Columns beyond the rotated ones stay in place.
  std::vector<int32_t> row_order(std::string_view slot) const override {
    const std::string_view rest = slot_place(slot).rest;
    const bool q = rest == "attn_q.weight" || rest == "attn_q.bias",
               k = rest == "attn_k.weight" || rest == "attn_k.bias";
    if (!family_->gguf_interleaves || !(q || k)) return {};
    const int heads = q ? spec_.heads : spec_.kv_heads,
              rotary = spec_.rope.rotary ? spec_.rope.rotary : spec_.head_dim;
    std::vector<int32_t> order;
    order.reserve(size_t(heads) * size_t(spec_.head_dim));
    for (int h = 0; h < heads; h++) {
      for (int i = 0; i < spec_.head_dim; i++) {
        const int stored = i >= rotary ? i : i < rotary / 2 ? 2 * i : 2 * (i - rotary / 2) + 1;
        order.push_back(h * spec_.head_dim + stored);
      }
    }
    return order;
  }

  void release(std::string_view slot) const override {
    const Stored stored = find(slot);
    const bool more = stored.expert >= 0 && stored.expert + 1 < spec_.experts;  // of the same tensor to come
    if (stored.tensor && !more) file_->release(*stored.tensor);
  }
  const GgufFile* gguf() const override { return file_.get(); }
  Result<std::string> side_file(std::string_view name) const override {
    return Error{ErrorCode::kNotFound, fmt::format("{}: {} is not beside a GGUF file", path(), shown(name))};
  }

 private:
  // A slot's tensor. Newer files hold the experts of a layer in one tensor, [E, rows, columns].
  struct Stored {
    const GgufTensor* tensor = nullptr;
    int expert = -1;  // which of the tensor's, or -1: all of it
  };
  Stored find(std::string_view slot) const {
    if (const GgufTensor* whole = file_->tensor(slot)) return {whole, -1};
    const SlotPlace place = slot_place(slot);
    const ExpertPlace expert = expert_place(place.rest);
    if (place.layer < 0 || expert.expert < 0) return {};
    return {file_->tensor(fmt::format("blk.{}.{}_exps.weight", place.layer, expert.matrix)), expert.expert};
  }

  Status read_numbers() {
    const std::optional<std::string_view> name = file_->string("general.architecture");
    if (!name) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: key 'general.architecture' is missing, so this is no model", path())};
    }
    for (const Family* f : families()) {
      if (!f->gguf_architecture.empty() && f->gguf_architecture == *name) family_ = f;
    }
    if (!family_) {
      return Error{ErrorCode::kUnsupported, fmt::format("{}: architecture {} is not supported (supported: {})",
                                                        path(), shown(*name), supported_families())};
    }
    Result<ModelSpec> spec = read_gguf_spec(*family_, *file_);
    if (!spec) return spec.error();
    spec_ = std::move(*spec);
    return {};
  }

  Status check_tensors() {
    std::vector<std::string> known;
    if (const size_t tokens = file_->array_size("tokenizer.ggml.tokens"); tokens > size_t(spec_.vocab)) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: key 'tokenizer.ggml.tokens': {} tokens, but the embedding has {} rows",
                               path(), tokens, spec_.vocab)};
    }
    for (const Slot& slot : slots_of(spec_)) {
      const Stored stored = find(slot.name);
      const GgufTensor* t = stored.tensor;
      if (!t) {
        return Error{ErrorCode::kCorrupt,
                     fmt::format("{}: tensor {} is missing; the file is incomplete or of another architecture",
                                 path(), shown(slot.name))};
      }
      std::vector<int64_t> shape = shape_of(*t);
      if (stored.expert >= 0 && shape.size() == 3 && shape[0] == spec_.experts) shape.erase(shape.begin());
      if (Status s = check_slot_tensor(path(), t->name, slot, shape, t->type->readable(), t->type->name); !s)
        return s;
      known.emplace_back(t->name);
    }
    if (Status s = check_frequencies(); !s) return s;
    return refuse_unknown(std::move(known));
  }

  // A tensor in a layer that nothing reads would mean a model that computes something else.
  Status refuse_unknown(std::vector<std::string> known) {
    std::sort(known.begin(), known.end());
    for (const GgufTensor& t : file_->tensors()) {
      const SlotPlace place = slot_place(t.name);
      const bool ignored =
          place.layer < 0 || place.rest.starts_with("rope_freqs") || place.rest.starts_with("attn_rot_embd");
      if (!ignored && !std::binary_search(known.begin(), known.end(), t.name)) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("{}: tensor {} has no place in a {} model; it would be left out", path(),
                                 shown(t.name), family_->name)};
      }
    }
    return {};
  }

  Status check_frequencies() {
    const GgufTensor* t = file_->tensor("rope_freqs.weight");
    if (!t) return {};
    const int64_t half = (spec_.rope.rotary ? spec_.rope.rotary : spec_.head_dim) / 2;
    return check_slot_tensor(path(), t->name, Slot{"rope_freqs.weight", 1, half, false}, shape_of(*t),
                             t->type->readable(), t->type->name);
  }

  std::unique_ptr<GgufFile> file_;
  const Family* family_ = nullptr;
  ModelSpec spec_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::string& path) {
  return GgufCheckpoint::open(path);
}

}  // namespace sluice
