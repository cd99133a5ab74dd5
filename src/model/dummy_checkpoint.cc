#include "model/dummy_checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "model/slots.h"
#include "tensor/fp8.h"

namespace sluice {
namespace {

enum class Kind { llama, llama31, llama32, qwen2, qwen3, null };

struct Shape {
  const char* name;
  Kind kind;
  int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
  bool tied;
};

// Numbers of the published config.json files.
constexpr Shape kShapes[] = {
    {"smollm2-135m", Kind::llama, 30, 576, 9, 3, 64, 1536, 49152, 8192, true},
    {"qwen2.5-0.5b", Kind::qwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, true},
    {"llama-3.2-1b", Kind::llama32, 16, 2048, 32, 8, 64, 8192, 128256, 131072, true},
    {"llama-3.2-3b", Kind::llama32, 28, 3072, 24, 8, 128, 8192, 128256, 131072, true},
    {"llama-3-8b", Kind::llama, 32, 4096, 32, 8, 128, 14336, 128256, 8192, false},
    {"llama-3.1-8b", Kind::llama31, 32, 4096, 32, 8, 128, 14336, 128256, 131072, false},
    {"llama-3.1-70b", Kind::llama31, 80, 8192, 64, 8, 128, 28672, 128256, 131072, false},
    {"qwen3-8b", Kind::qwen3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, false},
    {"null", Kind::null, 1, 64, 1, 1, 64, 64, 32000, 8192, true},
};

ModelSpec spec_of(const Shape& s) {
  ModelSpec spec;
  spec.architecture = s.kind == Kind::null    ? kNullArchitecture
                      : s.kind == Kind::qwen2 ? "qwen2"
                      : s.kind == Kind::qwen3 ? "qwen3"
                                              : "llama";
  spec.name = std::string("dummy ") + s.name;
  spec.layers = s.layers, spec.hidden = s.hidden, spec.heads = s.heads, spec.kv_heads = s.kv_heads;
  spec.head_dim = s.head_dim, spec.ffn = s.ffn, spec.vocab = s.vocab, spec.context = s.context;
  spec.attention_scale = 1 / std::sqrt(float(s.head_dim));
  spec.tied_head = s.tied;
  spec.qkv_bias = s.kind == Kind::qwen2, spec.qk_norm = s.kind == Kind::qwen3;
  if (s.kind == Kind::qwen2 || s.kind == Kind::qwen3) spec.norm_eps = 1e-6f;
  spec.rope.base = s.kind == Kind::qwen2 || s.kind == Kind::qwen3 ? 1e6f : 5e5f;
  if (s.kind == Kind::llama31 || s.kind == Kind::llama32) {
    spec.rope.scaling = RopeSpec::Scaling::llama3;
    spec.rope.factor = s.kind == Kind::llama31 ? 8 : 32;
  }
  return spec;
}

constexpr int kWholeRows = -1;  // columns of a group

struct MadeUp {
  WeightFormat format;
  bool layers_only = false;  // embedding and head are bf16, as published checkpoints have them
};

uint64_t seed_of(std::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hash;
}

class DummyRows final : public RowSource {
 public:
  DummyRows(const Slot& slot, WeightFormat format)
      : rows_(slot.rows),
        cols_(slot.cols),
        format_(format),
        seed_(seed_of(slot.name)),
        deviation_(1 / std::sqrt(float(slot.cols))) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  std::optional<Synthetic> synthetic() const override { return Synthetic{seed_, deviation_}; }

  // Evenly distributed here: cheap, and as good for measuring.
  void decode(int64_t row, DecodedRow& out) const override {
    uint32_t random = uint32_t(seed_) + uint32_t(row) * 2654435761u + 12345;
    const auto next = [&] { return (random = random * 1664525u + 1013904223u) >> 24; };  // 0..255
    // The deviation of n evenly spaced values is close to n / sqrt(12) of their steps.
    const float step = deviation_ * std::sqrt(12.f) / (format_.element == WeightElement::int4 ? 16 : 256);
    if (format_.is_float()) {
      out.raw.resize(size_t(cols_) * element_bytes());
      for (int64_t i = 0; i < cols_; ++i) put(out.raw, size_t(i), (float(next()) - 127.5f) * step);
      return;
    }
    const bool int4 = format_.element == WeightElement::int4, fp8 = format_.element == WeightElement::fp8;
    out.q.resize(size_t(cols_));
    for (int8_t& q : out.q)
      q = int8_t(int4 ? next() & 15 : fp8 ? f32_to_e4m3(float(next()) - 127.5f) : next() - 128);
    out.scale.assign(size_t(cols_ / format_.group), step);
    out.min.assign(size_t(cols_ / format_.group), format_.has_min ? -7.5f * step : 0.f);
  }

 private:
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
  uint64_t seed_;
  float deviation_;
};

// One row that is the same everywhere.
class ConstantRow final : public RowSource {
 public:
  ConstantRow(int64_t cols, float value) : cols_(cols), value_(value) {}
  int64_t rows() const override { return 1; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return {}; }
  void decode(int64_t, DecodedRow& out) const override {
    out.raw.resize(size_t(cols_) * sizeof(float));
    for (int64_t i = 0; i < cols_; ++i) std::memcpy(out.raw.data() + size_t(i) * 4, &value_, 4);
  }

 private:
  int64_t cols_;
  float value_;
};

// A byte in the printable alphabet of byte-level vocabularies, as text of a JSON string.
std::string byte_token(int byte, int& beyond) {
  const bool printable =
      (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
  const int c = printable ? byte : 256 + beyond++;
  if (c == '"' || c == '\\') return {'\\', char(c)};
  if (c < 128) return {char(c)};
  return {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
}

// Every byte, then a space and letters: any id stands for something, and short words are one token each. One
// merge, since a vocabulary without any is taken for a broken one.
std::string tokenizer_json(int vocab) {
  std::string out =
      R"({"version":"1.0","model":{"type":"BPE","ignore_merges":true,"merges":["\u0120 a"],"vocab":{)";
  int beyond = 0;
  for (int id = 0; id < vocab; ++id) {
    std::string token;
    if (id < 256) {
      token = byte_token(id, beyond);
    } else {
      for (int n = id - 255; n > 0; n = (n - 1) / 26) token.insert(token.begin(), char('a' + (n - 1) % 26));
      token.insert(0, "\u0120");
    }
    out += fmt::format("{}\"{}\":{}", id ? "," : "", token, id);
  }
  return out + R"(}},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)"
               R"("decoder":{"type":"ByteLevel"}})";
}

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

class DummyCheckpoint final : public Checkpoint {
 public:
  DummyCheckpoint(const ModelSpec& spec, const MadeUp& format, const std::string& shape)
      : spec_(spec), path_(std::string(kDummyPrefix) + shape), format_(format) {
    for (const Slot& slot : slots_of(spec_)) slots_.emplace(slot.name, slot);
  }
  const std::string& path() const override { return path_; }
  std::string format() const override { return "made up"; }
  const ModelSpec& spec() const override { return spec_; }
  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (const auto& [name, slot] : slots_)
      out.push_back({name, "made up", {slot.rows, slot.cols}, 0, format_of(slot), false});
    return out;
  }
  std::unique_ptr<RowSource> rows(std::string_view name) const override {
    const auto at = slots_.find(name);
    if (at == slots_.end()) return nullptr;
    const Slot& slot = at->second;
    if (!slot.matrix) return std::make_unique<ConstantRow>(slot.cols, name.ends_with("bias") ? 0.f : 1.f);
    return std::make_unique<DummyRows>(slot, format_of(slot));
  }
  std::vector<int32_t> row_order(std::string_view) const override { return {}; }
  void release(std::string_view) const override {}
  const GgufFile* gguf() const override { return nullptr; }
  Result<std::string> side_file(std::string_view name) const override {
    if (name == "tokenizer.json") return tokenizer_json(spec_.vocab);
    if (name == "chat_template.jinja") return std::string(kChatTemplate);
    return Error{ErrorCode::kNotFound, fmt::format("{}: has no file {}", path_, name)};
  }

 private:
  WeightFormat format_of(const Slot& slot) const {
    if (!slot.matrix) return {};
    if (format_.layers_only && !slot.name.starts_with("blk.")) return {WeightElement::bf16};
    WeightFormat format = format_.format;
    if (format.group == kWholeRows) format.group = int(slot.cols);
    if (format.element == WeightElement::int4)
      while (format.group > 32 && slot.cols % format.group != 0) format.group /= 2;
    return format;
  }

  ModelSpec spec_;
  std::string path_;
  MadeUp format_;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> make_dummy_checkpoint(const std::string& shape) {
  static const std::map<std::string_view, MadeUp> kFormats = {
      {"int4", {{WeightElement::int4, 32, true}}},
      {"awq", {{WeightElement::int4, 128, true}, true}},
      {"int8", {{WeightElement::int8, 32, false}}},
      {"w8a8", {{WeightElement::int8, kWholeRows}, true}},
      {"fp8", {{WeightElement::fp8, kWholeRows}, true}},
      {"bf16", {{WeightElement::bf16}}},
      {"f16", {{WeightElement::f16}}},
      {"f32", {{WeightElement::f32}}}};
  const size_t colon = shape.find(':');
  const std::string name = shape.substr(0, colon);
  const auto format =
      kFormats.find(colon == std::string::npos ? "int4" : std::string_view(shape).substr(colon + 1));
  if (format == kFormats.end())
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("--dummy {}: the format must be int4, awq, int8, w8a8, fp8, bf16, f16 or f32", shape)};
  std::string known;
  for (const Shape& s : kShapes) {
    if (name == s.name)
      return std::unique_ptr<Checkpoint>(new DummyCheckpoint(spec_of(s), format->second, shape));
    known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
  }
  return Error{ErrorCode::kInvalidArgument, fmt::format("--dummy {}: unknown shape; known: {}", shape, known)};
}

}  // namespace sluice
