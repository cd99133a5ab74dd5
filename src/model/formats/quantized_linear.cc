#include "model/formats/quantized_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/formats/shown.h"
#include "tensor/half.h"

namespace sluice {
namespace {

// Element i of data that may lie unaligned.
template <typename T>
T at(const SafetensorsTensor& t, int64_t i) {
  T value;
  std::memcpy(&value, t.data.data() + size_t(i) * sizeof(T), sizeof(T));
  return value;
}

float scale_at(const SafetensorsTensor& t, int64_t i) {
  if (t.type == "F32") return at<float>(t, i);
  return t.type == "F16" ? f16_to_f32(at<uint16_t>(t, i)) : bf16_to_f32(at<uint16_t>(t, i));
}

// e4m3 without infinities: 1 sign, 4 exponent (bias 7), 3 mantissa bits; all ones is NaN.
float e4m3_to_f32(uint8_t b) {
  const uint32_t sign = uint32_t(b & 0x80) << 24, magnitude = b & 0x7f;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  if (magnitude < 8) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(magnitude) * 0x1p-9f));
  return std::bit_cast<float>(sign | ((magnitude << 20) + (uint32_t(127 - 7) << 23)));
}

// Where a layer's integers and zeros lie in their words.
struct Packing {
  const SafetensorsTensor* weights;
  const SafetensorsTensor* zeros;
  const SafetensorsTensor* scales;
  int64_t rows, cols, group;
  int bits;
  bool awq;
  int zero_offset;  // added to a stored zero

  int64_t groups() const { return cols / group; }
  int mask() const { return (1 << bits) - 1; }
  int weight(int64_t row, int64_t col) const {
    const int64_t per = 32 / bits;
    if (awq) return nibble(*weights, col, row);
    return int(at<uint32_t>(*weights, col / per * rows + row) >> (col % per * bits)) & mask();
  }
  int zero(int64_t row, int64_t g) const {
    if (awq) return nibble(*zeros, g, row);
    const int64_t per = 32 / bits;
    return (int(at<uint32_t>(*zeros, g * (rows / per) + row / per) >> (row % per * bits)) & mask()) +
           zero_offset;
  }
  float scale(int64_t row, int64_t g) const { return scale_at(*scales, g * rows + row); }

 private:
  int nibble(const SafetensorsTensor& t, int64_t line, int64_t row) const {
    constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return int(at<uint32_t>(t, line * (rows / 8) + row / 8) >> (4 * kPlace[row % 8])) & 15;
  }
};

// Groups of neighbouring columns: integers as they are.
class GroupedRows final : public RowSource {
 public:
  explicit GroupedRows(Packing packing) : p_(packing) {}
  int64_t rows() const override { return p_.rows; }
  int64_t cols() const override { return p_.cols; }
  WeightFormat format() const override {
    return {p_.bits == 4 ? WeightElement::int4 : WeightElement::int8, int(p_.group), true};
  }
  void decode(int64_t row, DecodedRow& out) const override {
    const int middle = p_.bits == 4 ? 0 : 128;  // int8 is signed
    out.q.resize(size_t(p_.cols));
    out.scale.resize(size_t(p_.groups()));
    out.min.resize(size_t(p_.groups()));
    for (int64_t c = 0; c < p_.cols; c++) out.q[size_t(c)] = int8_t(p_.weight(row, c) - middle);
    for (int64_t g = 0; g < p_.groups(); g++) {
      out.scale[size_t(g)] = p_.scale(row, g);
      out.min[size_t(g)] = float(middle - p_.zero(row, g)) * out.scale[size_t(g)];
    }
  }

 private:
  const Packing p_;
};

// Groups in any order (desc_act): no run of columns shares a scale, so the values come as f16.
class ShuffledRows final : public RowSource {
 public:
  ShuffledRows(Packing packing, const SafetensorsTensor& index) : p_(packing), index_(index) {}
  int64_t rows() const override { return p_.rows; }
  int64_t cols() const override { return p_.cols; }
  WeightFormat format() const override { return {WeightElement::f16, 0, false}; }
  void decode(int64_t row, DecodedRow& out) const override {
    out.raw.resize(size_t(p_.cols) * 2);
    for (int64_t c = 0; c < p_.cols; c++) {
      const int64_t g = at<int32_t>(index_, c);
      const uint16_t value = f32_to_f16(float(p_.weight(row, c) - p_.zero(row, g)) * p_.scale(row, g));
      std::memcpy(out.raw.data() + 2 * c, &value, 2);
    }
  }

 private:
  const Packing p_;
  const SafetensorsTensor& index_;
};

// Eight-bit floats times their block's scale, as bf16: five bits more than were stored.
class Fp8Rows final : public RowSource {
 public:
  Fp8Rows(const SafetensorsTensor& weights, const SafetensorsTensor& scales, int64_t block_rows,
          int64_t block_cols)
      : weights_(weights), scales_(scales), block_rows_(block_rows), block_cols_(block_cols) {}
  int64_t rows() const override { return weights_.shape[0]; }
  int64_t cols() const override { return weights_.shape[1]; }
  WeightFormat format() const override { return {WeightElement::bf16, 0, false}; }
  void decode(int64_t row, DecodedRow& out) const override {
    const int64_t per_row = (cols() + block_cols_ - 1) / block_cols_;
    out.raw.resize(size_t(cols()) * 2);
    for (int64_t c = 0; c < cols(); c++) {
      const float scale = scale_at(scales_, row / block_rows_ * per_row + c / block_cols_);
      const uint16_t value = f32_to_bf16(e4m3_to_f32(at<uint8_t>(weights_, row * cols() + c)) * scale);
      std::memcpy(out.raw.data() + 2 * c, &value, 2);
    }
  }

 private:
  const SafetensorsTensor& weights_;
  const SafetensorsTensor& scales_;
  const int64_t block_rows_, block_cols_;
};

// Looks up a layer's tensors and keeps the first complaint.
class Parts {
 public:
  Parts(const SafetensorsFolder& folder, const std::string& base) : folder_(folder), base_(base) {}

  const SafetensorsTensor* get(const char* suffix, std::vector<int64_t> shape, std::string_view types) {
    const SafetensorsTensor* t = folder_.tensor(base_ + suffix);
    if (!t) return complain(base_ + suffix, "is missing", folder_.path()), nullptr;
    if (t->shape != shape)
      complain(t->name,
               fmt::format("has shape [{}], but the model's numbers ask for [{}]", fmt::join(t->shape, ", "),
                           fmt::join(shape, ", ")),
               folder_.file_path(*t));
    if (types.find(t->type) == std::string_view::npos)
      complain(t->name, fmt::format("has type {}, but {} is expected", shown(t->type), types),
               folder_.file_path(*t));
    found_.push_back(t);
    return t;
  }
  void complain(const std::string& tensor, const std::string& why, const std::string& path) {
    if (!error_) error_ = Error{ErrorCode::kCorrupt, fmt::format("{}: tensor {} {}", path, shown(tensor), why)};
  }
  bool ok() const { return !error_; }
  Result<QuantizedLinear> with(std::unique_ptr<RowSource> rows, std::string type, bool lossy) {
    if (error_) return *error_;
    return QuantizedLinear{std::move(rows), std::move(found_), std::move(type), lossy};
  }
  Error error() const { return *error_; }

 private:
  const SafetensorsFolder& folder_;
  const std::string& base_;
  std::vector<const SafetensorsTensor*> found_;
  std::optional<Error> error_;
};

constexpr std::string_view kScaleTypes = "F16, BF16 or F32";

bool in_order(const SafetensorsTensor& index, int64_t group) {
  for (int64_t c = 0; c < index.shape[0]; c++) {
    if (at<int32_t>(index, c) != c / group) return false;
  }
  return true;
}

Result<QuantizedLinear> find_integers(const Quantization& q, const SafetensorsFolder& folder,
                                      const std::string& base, int64_t rows, int64_t cols) {
  Parts parts(folder, base);
  const bool awq = q.method == Quantization::Method::awq;
  const int64_t group = q.group ? q.group : cols, per_word = 32 / q.bits;
  const std::string weights_name = base + ".qweight";
  if (cols % group != 0 || cols % per_word != 0 || rows % per_word != 0) {
    parts.complain(weights_name, fmt::format("of {} x {} cannot be cut into groups of {}", rows, cols, group),
                   folder.path());
    return parts.error();
  }
  const auto shape = [&](int64_t a, int64_t b) { return std::vector<int64_t>{a, b}; };
  Packing p{.weights = parts.get(".qweight", awq ? shape(cols, rows / 8) : shape(cols / per_word, rows), "I32"),
            .zeros = parts.get(".qzeros", shape(cols / group, rows / per_word), "I32"),
            .scales = parts.get(".scales", shape(cols / group, rows), kScaleTypes),
            .rows = rows,
            .cols = cols,
            .group = group,
            .bits = q.bits,
            .awq = awq,
            .zero_offset = q.zeros_less_one ? 1 : 0};
  const SafetensorsTensor* index = nullptr;
  if (!awq && folder.tensor(base + ".g_idx")) index = parts.get(".g_idx", {cols}, "I32");
  if (!parts.ok()) return parts.error();
  for (int64_t c = 0; index && c < cols; c++) {
    if (const int32_t g = at<int32_t>(*index, c); g < 0 || g >= p.groups()) {
      parts.complain(index->name, fmt::format("names group {} of {}", g, p.groups()), folder.file_path(*index));
      return parts.error();
    }
  }
  const std::string type = fmt::format("{} {}-bit", awq ? "AWQ" : "GPTQ", q.bits);
  if (index && !in_order(*index, group))
    return parts.with(std::make_unique<ShuffledRows>(p, *index), type, true);
  return parts.with(std::make_unique<GroupedRows>(p), type, false);
}

Result<QuantizedLinear> find_fp8(const Quantization& q, const SafetensorsFolder& folder,
                                 const std::string& base, int64_t rows, int64_t cols) {
  Parts parts(folder, base);
  const SafetensorsTensor* weights = parts.get(".weight", {rows, cols}, "F8_E4M3");
  const SafetensorsTensor* scales = nullptr;
  int64_t block_rows = q.block_rows, block_cols = q.block_cols;
  if (block_rows > 0) {
    scales =
        parts.get(".weight_scale_inv",
                  {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols}, kScaleTypes);
  } else {
    const SafetensorsTensor* one = folder.tensor(base + ".weight_scale");
    const bool per_output = one && one->shape.size() == 2;
    scales = parts.get(".weight_scale",
                       per_output ? std::vector<int64_t>{rows, 1}
                       : one      ? one->shape
                                  : std::vector<int64_t>{},
                       kScaleTypes);
    if (one && !per_output && one->data.size() > sizeof(float))
      parts.complain(one->name, "is neither one number nor one per output", folder.file_path(*one));
    block_rows = per_output ? 1 : rows, block_cols = cols;
  }
  if (folder.tensor(base + ".input_scale"))
    parts.get(".input_scale", folder.tensor(base + ".input_scale")->shape, kScaleTypes);
  if (!parts.ok()) return parts.error();
  return parts.with(std::make_unique<Fp8Rows>(*weights, *scales, block_rows, block_cols), "FP8", true);
}

}  // namespace

Result<QuantizedLinear> find_quantized(const Quantization& q, const SafetensorsFolder& folder,
                                       const std::string& base, int64_t rows, int64_t cols) {
  const SafetensorsTensor* plain = folder.tensor(base + ".weight");
  if (q.method == Quantization::Method::fp8)
    return plain && plain->type == "F8_E4M3" ? find_fp8(q, folder, base, rows, cols) : QuantizedLinear{};
  if (q.method == Quantization::Method::none || plain) return QuantizedLinear{};
  return find_integers(q, folder, base, rows, cols);
}

namespace {

// One key of quantization_config after the other; the first complaint is kept.
class Settings {
 public:
  Settings(const JsonValues& config, std::string section, const std::string& path)
      : config_(config), section_(std::move(section)), path_(path) {}

  std::string text(const char* key, const char* fallback) const {
    return std::string(config_.string(full(key)).value_or(fallback));
  }
  int integer(const char* key, int fallback) const { return int(config_.number(full(key)).value_or(fallback)); }
  bool flag(const char* key, bool fallback) const { return config_.boolean(full(key)).value_or(fallback); }
  std::vector<double> numbers(const char* key) const { return config_.numbers(full(key)); }
  bool has(const char* key) const { return config_.has(full(key)); }
  void refuse(const char* key, const std::string& why) {
    if (!error_)
      error_ = Error{ErrorCode::kUnsupported, fmt::format("{}: key {}: {}", path_, shown(full(key)), why)};
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::string full(const char* key) const { return section_ + "." + key; }
  const JsonValues& config_;
  const std::string section_, &path_;
  std::optional<Error> error_;
};

void read_integers(Settings& s, Quantization& q) {
  const bool awq = q.method == Quantization::Method::awq;
  q.bits = s.integer("bits", s.integer("w_bit", 4));
  if (q.bits != 4 && (awq || q.bits != 8))
    s.refuse("bits", fmt::format("{} is not supported ({})", q.bits, awq ? "4 is" : "4 and 8 are"));
  const int group = s.integer("group_size", s.integer("q_group_size", 128));
  q.group = std::max(group, 0);
  if (group != -1 && group != 16 && (group < 32 || group % 32 != 0 || group > (1 << 20)))
    s.refuse("group_size",
             fmt::format("{} is not supported (16, multiples of 32, and -1 for whole rows are)", group));
  if (awq) {
    if (const std::string version = s.text("version", "gemm"); version != "gemm" && version != "GEMM")
      s.refuse("version", fmt::format("layout {} is not supported (gemm is)", shown(version)));
    if (!s.flag("zero_point", true)) s.refuse("zero_point", "false is not supported");
    return;
  }
  const std::string layout = s.text("checkpoint_format", "gptq");
  if (layout != "gptq" && layout != "gptq_v2")
    s.refuse("checkpoint_format", fmt::format("{} is not supported (gptq and gptq_v2 are)", shown(layout)));
  q.zeros_less_one = layout == "gptq";
}

void read_fp8(Settings& s, Quantization& q) {
  q.bits = 8;
  if (const std::string layout = s.text("fmt", "e4m3"); layout != "e4m3")
    s.refuse("fmt", fmt::format("{} is not supported (e4m3 is)", shown(layout)));
  const std::vector<double> block = s.numbers("weight_block_size");
  if (block.empty()) return;
  const auto fits = [](double v) { return v >= 1 && v <= (1 << 20) && v == int(v); };
  if (block.size() != 2 || !fits(block[0]) || !fits(block[1]))
    return s.refuse("weight_block_size", "two sizes are expected");
  q.block_rows = int(block[0]), q.block_cols = int(block[1]);
}

}  // namespace

Result<Quantization> read_quantization(const JsonValues& config, const std::string& path) {
  std::string section;
  for (const char* name : {"quantization_config", "text_config.quantization_config"}) {
    if (config.has(name)) section = name;
  }
  Quantization q;
  if (section.empty()) return q;
  Settings s(config, section, path);
  const std::string method = s.text("quant_method", "unknown");
  if (method == "awq") {
    q.method = Quantization::Method::awq;
  } else if (method == "gptq") {
    q.method = Quantization::Method::gptq;
  } else if (method == "fp8") {
    q.method = Quantization::Method::fp8;
  } else {
    s.refuse("quant_method",
             fmt::format("{} is not supported (awq, gptq and fp8 are); use such a folder, an unquantized "
                         "one or a GGUF file",
                         shown(method)));
  }
  if (!s.error()) q.method == Quantization::Method::fp8 ? read_fp8(s, q) : read_integers(s, q);
  if (s.error()) return *s.error();
  return q;
}

}  // namespace sluice
