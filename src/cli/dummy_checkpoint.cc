#include "cli/dummy_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>

#include "model/slots.h"

namespace sluice::cli {
namespace {

struct Shape {
  const char* name;
  int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
  bool tied, bias;
};

constexpr Shape kShapes[] = {
    {"smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, true, false},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, 32768, true, true},
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true, false},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, true, false},
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, false, false},
};

ModelSpec spec_of(const Shape& s) {
  ModelSpec spec;
  spec.architecture = s.bias ? "qwen2" : "llama";
  spec.name = std::string("dummy ") + s.name;
  spec.layers = s.layers, spec.hidden = s.hidden, spec.heads = s.heads, spec.kv_heads = s.kv_heads;
  spec.head_dim = s.head_dim, spec.ffn = s.ffn, spec.vocab = s.vocab, spec.context = s.context;
  spec.attention_scale = 1 / std::sqrt(float(s.head_dim));
  spec.tied_head = s.tied, spec.qkv_bias = s.bias;
  spec.rope.base = 500000;
  return spec;
}

// Rows that differ, and whose products stay small through all layers.
class DummyRows final : public RowSource {
 public:
  DummyRows(const Slot& slot, WeightFormat format) : rows_(slot.rows), cols_(slot.cols), format_(format) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }

  void decode(int64_t row, DecodedRow& out) const override {
    uint32_t random = uint32_t(row) * 2654435761u + 12345;
    const auto next = [&] { return (random = random * 1664525u + 1013904223u) >> 24; };  // 0..255
    if (format_.is_float()) {
      out.raw.resize(size_t(cols_) * element_bytes());
      for (int64_t i = 0; i < cols_; ++i) put(out.raw, size_t(i), (float(next()) - 127.5f) / 127.5f * kScale);
      return;
    }
    const bool int4 = format_.element == WeightElement::int4;
    out.q.resize(size_t(cols_));
    for (int8_t& q : out.q) q = int8_t(int4 ? next() & 15 : next() - 128);
    out.scale.assign(size_t(cols_ / format_.group), int4 ? kScale / 8 : kScale / 128);
    out.min.assign(size_t(cols_ / format_.group), format_.has_min ? -kScale : 0.f);
  }

 private:
  static constexpr float kScale = 0.03f;
  size_t element_bytes() const { return format_.element == WeightElement::f32 ? 4 : 2; }

  void put(std::vector<std::byte>& raw, size_t i, float value) const {
    if (format_.element == WeightElement::f32) {
      std::memcpy(raw.data() + i * 4, &value, 4);
      return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // bf16 keeps the upper half. f16 of a normal number of this size: rebiased exponent, ten bits of fraction.
    const uint16_t bf16 = uint16_t(bits >> 16);
    const int exponent = int((bits >> 23) & 255) - 112;
    const auto f16 =
        uint16_t((bits >> 16 & 0x8000) | (exponent > 0 ? uint32_t(exponent) << 10 | (bits >> 13 & 0x3ff) : 0));
    std::memcpy(raw.data() + i * 2, format_.element == WeightElement::bf16 ? &bf16 : &f16, 2);
  }

  int64_t rows_, cols_;
  WeightFormat format_;
};

class DummyCheckpoint final : public Checkpoint {
 public:
  DummyCheckpoint(const ModelSpec& spec, WeightFormat format) : spec_(spec), path_(spec.name), format_(format) {
    for (const Slot& slot : slots_of(spec_)) slots_.emplace(slot.name, slot);
  }
  const std::string& path() const override { return path_; }
  std::string format() const override { return "dummy"; }
  const ModelSpec& spec() const override { return spec_; }
  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (const auto& [name, slot] : slots_)
      out.push_back(
          {name, "dummy", {slot.rows, slot.cols}, size_t(slot.rows * slot.cols), format_of(slot), false});
    return out;
  }
  std::unique_ptr<RowSource> rows(std::string_view slot) const override {
    const auto at = slots_.find(slot);
    return at == slots_.end() ? nullptr : std::make_unique<DummyRows>(at->second, format_of(at->second));
  }
  std::vector<int32_t> row_order(std::string_view) const override { return {}; }
  void release(std::string_view) const override {}
  const GgufFile* gguf() const override { return nullptr; }
  Result<std::string> side_file(std::string_view name) const override {
    return Error{ErrorCode::kNotFound, fmt::format("{}: has no file {}", path_, name)};
  }

 private:
  WeightFormat format_of(const Slot& slot) const { return slot.matrix ? format_ : WeightFormat{}; }

  ModelSpec spec_;
  std::string path_;
  WeightFormat format_;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> make_dummy_checkpoint(const std::string& shape) {
  static const std::map<std::string_view, WeightFormat> kFormats = {{"int4", {WeightElement::int4, 32, true}},
                                                                    {"int8", {WeightElement::int8, 32, false}},
                                                                    {"bf16", {WeightElement::bf16}},
                                                                    {"f16", {WeightElement::f16}},
                                                                    {"f32", {WeightElement::f32}}};
  const size_t colon = shape.find(':');
  const std::string name = shape.substr(0, colon);
  const auto format =
      kFormats.find(colon == std::string::npos ? "int4" : std::string_view(shape).substr(colon + 1));
  if (format == kFormats.end())
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--dummy {}: the format must be int4, int8, bf16, f16 or f32", shape)};
  std::string known;
  for (const Shape& s : kShapes) {
    if (name == s.name) return std::unique_ptr<Checkpoint>(new DummyCheckpoint(spec_of(s), format->second));
    known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
  }
  return Error{ErrorCode::kInvalidArgument, fmt::format("--dummy {}: unknown shape; known: {}", shape, known)};
}

}  // namespace sluice::cli
