#include "model/formats/quantized_linear.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "model/formats/quantized_writer.h"
#include "model/formats/shown.h"
#include "tensor/fp8.h"
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

// Where a layer's integers and zeros lie in their words.
struct Packing {
  enum class Layout : uint8_t { awq, gptq, packed, bytes } layout;
  const SafetensorsTensor* weights;
  const SafetensorsTensor* zeros;  // null: the middle everywhere
  const SafetensorsTensor* scales;
  int64_t rows, cols, group;
  int bits;
  int zero_offset;  // added to a stored zero

  int64_t groups() const { return cols / group; }
  int mask() const { return (1 << bits) - 1; }
  int middle() const { return 1 << (bits - 1); }
  int weight(int64_t row, int64_t col) const {
    const int64_t per = 32 / bits;
    switch (layout) {
      case Layout::awq:
        return nibble(*weights, col, row);
      case Layout::gptq:
        return field(*weights, col / per * rows + row, col % per);
      case Layout::packed:
        return field(*weights, row * (cols / per) + col / per, col % per);
      case Layout::bytes:
        return at<int8_t>(*weights, row * cols + col) + 128;
    }
    return 0;
  }
  int zero(int64_t row, int64_t g) const {
    if (!zeros) return middle();
    const int64_t per = 32 / bits;
    switch (layout) {
      case Layout::awq:
        return nibble(*zeros, g, row);
      case Layout::gptq:
        return field(*zeros, g * (rows / per) + row / per, row % per) + zero_offset;
      case Layout::packed:
        return field(*zeros, row / per * groups() + g, row % per);
      case Layout::bytes:
        return at<int8_t>(*zeros, scale_index(row, g)) + 128;
    }
    return 0;
  }
  float scale(int64_t row, int64_t g) const { return scale_at(*scales, scale_index(row, g)); }

 private:
  // One number for all serves every row.
  int64_t scale_index(int64_t row, int64_t g) const {
    if (layout == Layout::awq || layout == Layout::gptq) return g * rows + row;
    return scales->shape.empty() || scales->shape[0] == 1 ? g : row * groups() + g;
  }
  int field(const SafetensorsTensor& t, int64_t word, int64_t place) const {
    return int(at<uint32_t>(t, word) >> (place * bits)) & mask();
  }
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
    if (p_.bits == 4) return {WeightElement::int4, int(p_.group), true};
    return {WeightElement::int8, int(p_.group), p_.zeros != nullptr};
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

// Eight-bit floats, a scale per block of rows and columns.
class Fp8Rows final : public RowSource {
 public:
  Fp8Rows(const SafetensorsTensor& weights, const SafetensorsTensor& scales, int64_t block_rows,
          int64_t block_cols)
      : weights_(weights), scales_(scales), block_rows_(block_rows), block_cols_(block_cols) {}
  int64_t rows() const override { return weights_.shape[0]; }
  int64_t cols() const override { return weights_.shape[1]; }
  WeightFormat format() const override {
    return {WeightElement::fp8, int(block_cols_), false, int(block_rows_)};
  }
  void decode(int64_t row, DecodedRow& out) const override {
    const int64_t per_row = (cols() + block_cols_ - 1) / block_cols_;
    out.q.resize(size_t(cols()));
    std::memcpy(out.q.data(), weights_.data.data() + row * cols(), size_t(cols()));
    out.scale.resize(size_t(per_row));
    bool numbers = true;
    for (int64_t g = 0; g < per_row; g++) {
      const float scale = out.scale[size_t(g)] = scale_at(scales_, row / block_rows_ * per_row + g);
      numbers &= std::isfinite(scale);
    }
    for (const int8_t q : out.q) numbers &= !e4m3_is_nan(uint8_t(q));
    if (!numbers) not_a_number_.store(true, std::memory_order_relaxed);
  }
  Status state() const override {
    if (!not_a_number_) return {};
    return Error{ErrorCode::kCorrupt, "holds values that are not numbers"};
  }

 private:
  const SafetensorsTensor& weights_;
  const SafetensorsTensor& scales_;
  const int64_t block_rows_, block_cols_;
  mutable std::atomic<bool> not_a_number_ = false;  // of any row that a thread decoded
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
  // What activations would be quantized with: nothing here reads it, as they stay finer than eight bits.
  void get_activation_scales() {
    for (const char* suffix : {".input_scale", ".input_zero_point"})
      if (const SafetensorsTensor* t = folder_.tensor(base_ + suffix)) found_.push_back(t);
  }
  bool ok() const { return !error_; }
  std::string path_of(const SafetensorsTensor& t) const { return folder_.file_path(t); }
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

// `index` names each column's group; null or in order: neighbouring columns share one.
Result<QuantizedLinear> with_index(Parts& parts, const Packing& p, const SafetensorsTensor* index,
                                   const std::string& type) {
  if (!parts.ok()) return parts.error();
  for (int64_t c = 0; index && c < p.cols; c++) {
    if (const int32_t g = at<int32_t>(*index, c); g < 0 || g >= p.groups()) {
      parts.complain(index->name, fmt::format("names group {} of {}", g, p.groups()), parts.path_of(*index));
      return parts.error();
    }
  }
  if (index && !in_order(*index, p.group))
    return parts.with(std::make_unique<ShuffledRows>(p, *index), type, true);
  return parts.with(std::make_unique<GroupedRows>(p), type, false);
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
  Packing p{.layout = awq ? Packing::Layout::awq : Packing::Layout::gptq,
            .weights = parts.get(".qweight", awq ? shape(cols, rows / 8) : shape(cols / per_word, rows), "I32"),
            .zeros = parts.get(".qzeros", shape(cols / group, rows / per_word), "I32"),
            .scales = parts.get(".scales", shape(cols / group, rows), kScaleTypes),
            .rows = rows,
            .cols = cols,
            .group = group,
            .bits = q.bits,
            .zero_offset = q.zeros_less_one ? 1 : 0};
  const SafetensorsTensor* index = nullptr;
  if (!awq && folder.tensor(base + ".g_idx")) index = parts.get(".g_idx", {cols}, "I32");
  if (!parts.ok()) return parts.error();
  return with_index(parts, p, index, fmt::format("{} {}-bit", awq ? "AWQ" : "GPTQ", q.bits));
}

// compressed-tensors: bits and group follow from the shapes.
Result<QuantizedLinear> find_packed(const SafetensorsFolder& folder, const std::string& base, int64_t rows,
                                    int64_t cols) {
  Parts parts(folder, base);
  const SafetensorsTensor* weights = folder.tensor(base + ".weight_packed");
  const SafetensorsTensor* scale = folder.tensor(base + ".weight_scale");
  const int64_t words = weights->shape.size() == 2 ? weights->shape[1] : 0;
  const int bits = words * 8 == cols ? 4 : words * 4 == cols ? 8 : 0;
  const int64_t groups = scale && scale->shape.size() == 2 ? scale->shape[1] : 0;
  if (bits == 0 || groups < 1 || cols % groups != 0 || cols / groups % 16 != 0 || rows % (32 / bits) != 0) {
    parts.complain(base + ".weight_packed",
                   fmt::format("of {} x {} is not packed as 4 or 8 bits in groups of a multiple of 16 columns",
                               rows, cols),
                   folder.path());
    return parts.error();
  }
  Packing p{.layout = Packing::Layout::packed,
            .weights = parts.get(".weight_packed", {rows, words}, "I32"),
            .zeros = nullptr,
            .scales = parts.get(".weight_scale", {rows, groups}, kScaleTypes),
            .rows = rows,
            .cols = cols,
            .group = cols / groups,
            .bits = bits,
            .zero_offset = 0};
  if (folder.tensor(base + ".weight_shape")) parts.get(".weight_shape", {2}, "I64 or I32");
  if (folder.tensor(base + ".weight_zero_point"))
    p.zeros = parts.get(".weight_zero_point", {rows * bits / 32, groups}, "I32");
  const SafetensorsTensor* index = nullptr;
  if (folder.tensor(base + ".weight_g_idx")) index = parts.get(".weight_g_idx", {cols}, "I32");
  parts.get_activation_scales();
  return with_index(parts, p, index, fmt::format("W{}A16", bits));
}

Result<QuantizedLinear> find_int8(const SafetensorsFolder& folder, const std::string& base, int64_t rows,
                                  int64_t cols) {
  Parts parts(folder, base);
  const SafetensorsTensor* scale = folder.tensor(base + ".weight_scale");
  const bool several = scale && scale->shape.size() == 2;
  const int64_t lines = several ? scale->shape[0] : 1, groups = several ? scale->shape[1] : 1;
  if ((lines != rows && lines != 1) || groups < 1 || cols % groups != 0 || cols / groups % 16 != 0) {
    parts.complain(base + ".weight_scale",
                   "is neither one number, one per output, nor one per group of columns", folder.path());
    return parts.error();
  }
  const std::vector<int64_t> shape = scale ? scale->shape : std::vector<int64_t>{};
  Packing p{.layout = Packing::Layout::bytes,
            .weights = parts.get(".weight", {rows, cols}, "I8"),
            .zeros = nullptr,
            .scales = parts.get(".weight_scale", shape, kScaleTypes),
            .rows = rows,
            .cols = cols,
            .group = cols / groups,
            .bits = 8,
            .zero_offset = 0};
  if (scale && !several && scale->shape.size() > 1)
    parts.complain(scale->name, "has too many dimensions", folder.file_path(*scale));
  if (scale && scale->shape.size() == 1 && scale->shape[0] != 1)
    parts.complain(scale->name, "is neither one number nor one per output", folder.file_path(*scale));
  if (folder.tensor(base + ".weight_zero_point")) p.zeros = parts.get(".weight_zero_point", shape, "I8");
  parts.get_activation_scales();
  return with_index(parts, p, nullptr, "INT8");
}

Result<QuantizedLinear> find_fp8(const Quantization& q, const SafetensorsFolder& folder,
                                 const std::string& base, int64_t rows, int64_t cols) {
  Parts parts(folder, base);
  const SafetensorsTensor* weights = parts.get(".weight", {rows, cols}, "F8_E4M3");
  const SafetensorsTensor* scales = nullptr;
  int64_t block_rows = q.block_rows, block_cols = q.block_cols;
  if (block_rows > 0) {
    scales =
        parts.get(q.method == Quantization::Method::compressed ? ".weight_scale" : ".weight_scale_inv",
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
  parts.get_activation_scales();
  if (!parts.ok()) return parts.error();
  return parts.with(std::make_unique<Fp8Rows>(*weights, *scales, block_rows, block_cols), "FP8", false);
}

}  // namespace

Result<QuantizedLinear> find_quantized(const Quantization& q, const SafetensorsFolder& folder,
                                       const std::string& base, int64_t rows, int64_t cols) {
  const SafetensorsTensor* plain = folder.tensor(base + ".weight");
  if (q.method == Quantization::Method::fp8)
    return plain && plain->type == "F8_E4M3" ? find_fp8(q, folder, base, rows, cols) : QuantizedLinear{};
  if (q.method == Quantization::Method::compressed) {
    if (plain && plain->type == "F8_E4M3") return find_fp8(q, folder, base, rows, cols);
    if (plain && plain->type == "I8") return find_int8(folder, base, rows, cols);
    if (folder.tensor(base + ".weight_packed")) return find_packed(folder, base, rows, cols);
    return QuantizedLinear{};
  }
  if (q.method == Quantization::Method::none || plain) return QuantizedLinear{};
  return find_integers(q, folder, base, rows, cols);
}

}  // namespace sluice
