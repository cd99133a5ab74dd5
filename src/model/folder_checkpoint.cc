// A checkpoint in a Hugging Face folder: config.json and safetensors.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/checkpoint_formats.h"
#include "model/families/family.h"
#include "model/formats/folder.h"
#include "model/formats/json_values.h"
#include "model/formats/quantized_linear.h"
#include "model/formats/rows.h"
#include "model/formats/safetensors.h"
#include "model/formats/shown.h"
#include "model/slots.h"

namespace sluice {
namespace {

constexpr size_t kMaxConfigBytes = 4 << 20, kMaxSideFileBytes = 256 << 20;

// Where the decoder's tensors stand: plain models, the two layouts of multimodal ones, and a bare decoder.
constexpr std::string_view kPrefixes[] = {"model.", "model.language_model.", "language_model.model.", ""};

class FolderCheckpoint final : public Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& folder) {
    auto out = std::make_unique<FolderCheckpoint>();
    out->folder_ = folder;
    if (Status s = out->read_numbers(); !s) return s.error();
    Result<std::unique_ptr<SafetensorsFolder>> files = SafetensorsFolder::open(folder);
    if (!files) return files.error();
    out->files_ = std::move(*files);
    if (Status s = out->check_tensors(); !s) return s.error();
    return std::unique_ptr<Checkpoint>(std::move(out));
  }

  const std::string& path() const override { return folder_; }
  std::string format() const override { return "safetensors"; }
  const ModelSpec& spec() const override { return spec_; }

  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    std::vector<const SafetensorsTensor*> pieces;
    for (const auto& [slot, layer] : quantized_) {
      TensorInfo info{base_of(slot),        layer.type, {layer.rows->rows(), layer.rows->cols()}, 0,
                      layer.rows->format(), layer.lossy};
      for (const SafetensorsTensor* t : layer.tensors) info.bytes += t->data.size();
      pieces.insert(pieces.end(), layer.tensors.begin(), layer.tensors.end());
      out.push_back(std::move(info));
    }
    std::sort(pieces.begin(), pieces.end());
    for (const SafetensorsTensor& t : files_->tensors()) {
      if (std::binary_search(pieces.begin(), pieces.end(), &t)) continue;
      const GgmlType* type = find_ggml_type(t.type.c_str());
      out.push_back({t.name, t.type, t.shape, t.data.size(), type ? type->canonical : WeightFormat{}, false});
    }
    return out;
  }

  std::unique_ptr<RowSource> rows(std::string_view slot) const override {
    if (const auto known = quantized_.find(slot); known != quantized_.end()) {
      const RowSource& rows = *known->second.rows;
      return std::move(find_quantized(quantization_, *files_, base_of(slot), rows.rows(), rows.cols())->rows);
    }
    const SafetensorsTensor* t = find(slot);
    const GgmlType* type = t ? find_ggml_type(t->type.c_str()) : nullptr;
    if (!type || t->shape.empty()) return nullptr;
    const int64_t cols = t->shape.back();
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < t->shape.size(); d++) rows *= t->shape[d];
    auto source = make_rows(*type, t->data, rows, cols);
    return family_->norms_plus_one && slot.ends_with("norm.weight") ? plus_one(std::move(source))
                                                                    : std::move(source);
  }

  std::vector<int32_t> row_order(std::string_view) const override { return {}; }
  void release(std::string_view slot) const override {
    if (const auto quantized = quantized_.find(slot); quantized != quantized_.end()) {
      for (const SafetensorsTensor* t : quantized->second.tensors) files_->release(*t);
    } else if (const SafetensorsTensor* t = find(slot)) {
      files_->release(*t);
    }
  }
  const GgufFile* gguf() const override { return nullptr; }
  Result<std::string> side_file(std::string_view name) const override {
    return read_folder_file(folder_, name, kMaxSideFileBytes);
  }

 private:
  Status read_numbers() {
    Result<std::string> text = read_folder_file(folder_, "config.json", kMaxConfigBytes);
    if (!text) {
      if (text.error().code != ErrorCode::kNotFound) return text.error();
      return Error{ErrorCode::kNotFound, fmt::format("{}: config.json is missing, so this is no Hugging Face "
                                                     "folder; give such a folder or a .gguf file",
                                                     folder_)};
    }
    const std::string path = folder_ + "/config.json";
    Result<JsonValues> config = JsonValues::parse(*text, path);
    if (!config) return config.error();
    Result<Quantization> quantization = read_quantization(*config, path);
    if (!quantization) return quantization.error();
    quantization_ = *quantization;
    const std::optional<std::string_view> type = config->string("model_type");
    if (!type) return Error{ErrorCode::kCorrupt, fmt::format("{}: key 'model_type' is missing", path)};
    for (const Family* f : families()) {
      if (std::find(f->model_types.begin(), f->model_types.end(), *type) != f->model_types.end()) family_ = f;
    }
    if (!family_) {
      return Error{ErrorCode::kUnsupported, fmt::format("{}: model_type {} is not supported (supported: {})",
                                                        path, shown(*type), supported_families())};
    }
    const bool nested = config->has("text_config.num_hidden_layers");
    Result<ModelSpec> spec = read_config_spec(*family_, *config, path, nested ? "text_config." : "");
    if (!spec) return spec.error();
    spec_ = std::move(*spec);
    spec_.name = folder_.substr(folder_.rfind('/') + 1);
    return {};
  }

  std::string name_of(std::string_view slot) const { return hugging_face_name(*family_, slot, prefix_); }

  // What the names of a quantized layer's tensors begin with.
  std::string base_of(std::string_view slot) const {
    const std::string name = name_of(slot);
    return name.substr(0, name.rfind('.'));
  }

  const SafetensorsTensor* find(std::string_view slot) const {
    const std::string name = name_of(slot);
    return name.empty() ? nullptr : files_->tensor(name);
  }

  Status check_tensors() {
    for (std::string_view prefix : kPrefixes) {
      prefix_ = prefix;
      if (find("token_embd.weight")) break;
    }
    if (!find("token_embd.weight")) prefix_ = kPrefixes[0];
    std::vector<std::string> known;
    for (const Slot& slot : slots_of(spec_)) {
      if (slot.matrix) {
        Result<QuantizedLinear> found =
            find_quantized(quantization_, *files_, base_of(slot.name), slot.rows, slot.cols);
        if (!found) return found.error();
        if (found->rows) {
          for (const SafetensorsTensor* t : found->tensors) known.push_back(t->name);
          quantized_.emplace(slot.name, std::move(*found));
          continue;
        }
      }
      const SafetensorsTensor* t = find(slot.name);
      if (!t) {
        return Error{
            ErrorCode::kCorrupt,
            fmt::format("{}: tensor {} is missing; the folder is incomplete or of another architecture",
                        folder_, shown(name_of(slot.name)))};
      }
      const bool readable = find_ggml_type(t->type.c_str()) != nullptr;
      if (Status s = check_slot_tensor(files_->file_path(*t), t->name, slot, t->shape, readable, t->type); !s)
        return s;
      known.push_back(t->name);
    }
    return refuse_unknown(std::move(known));
  }

  // A tensor in a layer that nothing reads would mean a model that computes something else.
  Status refuse_unknown(std::vector<std::string> known) {
    std::sort(known.begin(), known.end());
    const std::string layers = std::string(prefix_) + "layers.";
    for (const SafetensorsTensor& t : files_->tensors()) {
      if (t.name.starts_with(layers) && !t.name.ends_with("rotary_emb.inv_freq") &&
          !std::binary_search(known.begin(), known.end(), t.name)) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("{}: tensor {} has no place in a {} model; it would be left out",
                                 files_->file_path(t), shown(t.name), family_->name)};
      }
    }
    return {};
  }

  std::string folder_;
  const Family* family_ = nullptr;
  ModelSpec spec_;
  Quantization quantization_;
  std::unique_ptr<SafetensorsFolder> files_;
  std::map<std::string, QuantizedLinear, std::less<>> quantized_;  // by slot
  std::string_view prefix_ = kPrefixes[0];
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_folder_checkpoint(const std::string& folder) {
  return FolderCheckpoint::open(folder);
}

}  // namespace sluice
